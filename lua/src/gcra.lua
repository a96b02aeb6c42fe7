-- GCRA: the generic cell rate algorithm, `limit` per window with room for `burst`.
--
-- Its theoretical arrival time is updated + spent * window / limit.
local gcra = { name = 'gcra', has_burst = true, open = open_bucket }
