-- Arguments -----------------------------------------------------------------
-- limit window now [BURST b] [COST n] [PEEK | FORCE | PARTIAL]

-- An argument as an error message may show it: short, and in plain ASCII.
local function shown(text)
  local escapes = { ['\t'] = '\\t', ['\n'] = '\\n', ['\r'] = '\\r', ["'"] = "\\'", ['"'] = '\\"', ['\\'] = '\\\\' }
  local short = text:sub(1, 40):gsub('[^ !#-&(-[%]^-~]', function(char)
    return escapes[char] or ('\\x%02x'):format(char:byte())
  end)
  return "'" .. short .. (#text > 40 and '...' or '') .. "'"
end

-- Units: digits, from `least` to MAX.
local function units(name, text, least, suffix)
  local digits = text:match('^0*(%d+)$')
  local n = digits and #digits <= 16 and tonumber(digits)
  if n and n >= least and n <= MAX then
    return n
  end
  return nil, ('ERR %s must be a whole number from %d to 9007199254740991%s, got %s')
    :format(name, least, suffix or '', shown(text))
end

-- Milliseconds, as whole microseconds; further digits are dropped.
local function micros(text)
  local ms, fraction = text:match('^0*(%d+)%.(%d+)$')
  if not ms then
    ms, fraction = text:match('^0*(%d+)$'), ''
  end
  if ms and #ms <= 13 then
    return tonumber(ms) * 1000 + tonumber((fraction .. '000'):sub(1, 3))
  end
end

local function window_us(text)
  local us = micros(text)
  if us and us >= 1 and us <= 3155760000000000 then
    return us
  end
  return nil, 'ERR window must be milliseconds from 0.001 to 3155760000000, got ' .. shown(text)
end

local function now_us(text)
  if text == '*' then
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000000 + tonumber(time[2])
  end
  local us = micros(text)
  if us and us <= MAX then
    return us
  end
  return nil, 'ERR now must be milliseconds from 0 to 9007199254740.991, or *, got ' .. shown(text)
end

-- Whether count + fraction / window drain within 1000 years, exactly.
local function drains_in_1000_years(count, fraction, limit, window)
  if count + (fraction > 0 and 1 or 0) <= limit then
    return true -- within one window
  end
  -- The quotient in two steps, since 1000 years are beyond 2^53 themselves.
  local windows, part = muldiv(YEARS1000 / 4, 4, window)
  if count < limit * windows then
    return true
  end
  local last, last_fraction = muldiv(limit, part, window)
  count = count - limit * windows
  return count < last or (count == last and fraction <= last_fraction)
end

-- The call as a table, or nil and what is wrong with it.
local function parse(algorithm, args)
  local limit, window, now, err
  limit, err = units('limit', args[1], 1)
  if not limit then return nil, err end
  window, err = window_us(args[2])
  if not window then return nil, err end
  now, err = now_us(args[3])
  if not now then return nil, err end
  local call = { limit = limit, window = window, now = now }

  local i = 4
  while i <= #args do
    local option = args[i]:upper()
    if option == 'COST' or (option == 'BURST' and algorithm.has_burst) then
      if call[option] then
        return nil, 'ERR option ' .. option .. ' is given twice'
      end
      i = i + 1
      if not args[i] then
        return nil, 'ERR option ' .. option .. ' needs a value'
      end
      call[option], err = units(option:lower(), args[i], option == 'COST' and 0 or 1)
      if err then return nil, err end
    elseif option == 'PEEK' or option == 'FORCE' or option == 'PARTIAL' then
      if call.mode == option then
        return nil, 'ERR option ' .. option .. ' is given twice'
      elseif call.mode then
        return nil, 'ERR options ' .. call.mode .. ' and ' .. option .. ' exclude each other'
      end
      call.mode = option
    else
      return nil, 'ERR unknown option ' .. shown(args[i])
    end
    i = i + 1
  end

  call.cost = call.COST or 1
  if call.mode == 'PARTIAL' and call.cost == 0 then
    return units('cost', '0', 1, ' with PARTIAL')
  end
  call.capacity = call.BURST or limit -- the most that is admitted at once
  if not drains_in_1000_years(call.capacity, 0, limit, window) then
    return nil, 'ERR burst x window / limit must be at most 1000 years (31557600000000 ms)'
  end
  return call
end
