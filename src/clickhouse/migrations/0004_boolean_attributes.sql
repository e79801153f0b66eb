-- Booleans of attributes were copied as PostgreSQL keeps them, 1 and 0; reports compare and show true and false.
ALTER TABLE {database}.device_attribute{local} {on_cluster}
    UPDATE text = if(text = '1', 'true', 'false') WHERE kind = 1 AND text IN ('0', '1');
