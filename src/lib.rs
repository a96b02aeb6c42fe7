//! redis-rl
