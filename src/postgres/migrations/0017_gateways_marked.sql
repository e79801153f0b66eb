-- Gateways from before `device.is_gateway`: the trigger of that column reads the document once more.
update device set additional_info = additional_info
 where strpos(additional_info::text, '"gateway"') > 0 and not is_gateway;
