// A net/http middleware on redigo.
package main

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"
)

// Windows in ms: per API key, and per address that uses it.
var policies = []struct {
	name, algorithm string
	limit, window   int64
}{{"key", "GCRA", 100, 60_000}, {"ip", "SLIDINGLOG", 10, 1_000}}

const lease = 50

var pool = &redis.Pool{MaxIdle: 64, Dial: func() (redis.Conn, error) {
	timeout, _ := time.ParseDuration(env("REDIS_TIMEOUT_MS", "100") + "ms")
	return redis.DialURL(env("REDIS_URL", "redis://127.0.0.1:6379"), redis.DialConnectTimeout(timeout),
		redis.DialReadTimeout(timeout), redis.DialWriteTimeout(timeout))
}}

func env(name, or string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return or
}

// check is one round trip: it charges both limiters or none, then asks each when it has more.
func check(keys []string) (allowed bool, retryAfter int64, limiters [][]int64, nextAfter []int64, err error) {
	conn := pool.Get()
	defer conn.Close()
	args := redis.Args{len(keys)}.AddFlat(keys).Add("*")
	for _, p := range policies {
		args = args.Add(p.algorithm, p.limit, p.window)
	}
	conn.Send("RL.MULTI", args...)
	for _, key := range keys {
		conn.Send("RL.INSPECT", key, "*")
	}
	replies, err := redis.Values(conn.Do("")) // sends them all
	if err != nil {
		return
	}
	multi, err := redis.Values(replies[0], nil)
	if err != nil {
		return
	}
	var each []interface{}
	if _, err = redis.Scan(multi, &allowed, &retryAfter, &each); err != nil {
		return
	}
	for i := range each {
		limiter, _ := redis.Int64s(each[i], nil)
		limiters = append(limiters, limiter)
		var next int64 // where nothing is charged there is no key: all is left
		if state, err := redis.Values(replies[i+1], nil); err == nil {
			next, _ = redis.Int64(state[15], nil) // names and values, in the order that RL.INSPECT promises
		}
		nextAfter = append(nextAfter, next)
	}
	return
}

// call is one of the five commands: what is granted, what remains, and the ms to wait.
func call(command, key string, args ...interface{}) (granted, remaining, retryAfter int64, err error) {
	conn := pool.Get()
	defer conn.Close()
	reply, err := redis.Int64s(conn.Do(command, append([]interface{}{key}, args...)...))
	if err != nil {
		return 0, 0, 0, err
	}
	return reply[0], reply[2], reply[3], nil
}

func rateLimit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		allowed, retryAfter, limiters, nextAfter, err := check([]string{tag(r) + ":key", tag(r) + ":ip:" + address(r)})
		if err != nil { // away, too slow, or out of memory
			if env("FAIL", "open") == "open" {
				next.ServeHTTP(w, r)
			} else {
				closed(w)
			}
			return
		}
		var policy, state []string
		tightest := limiters[0]
		for i, p := range policies {
			policy = append(policy, fmt.Sprintf(`"%s";q=%d;w=%d`, p.name, p.limit, p.window/1000))
			state = append(state, fmt.Sprintf(`"%s";r=%d;t=%s`, p.name, limiters[i][2], seconds(nextAfter[i])))
			if limiters[i][2] < tightest[2] {
				tightest = limiters[i]
			}
		}
		w.Header().Set("RateLimit-Policy", strings.Join(policy, ", "))
		w.Header().Set("RateLimit", strings.Join(state, ", "))
		if env("LEGACY_HEADERS", "") == "1" {
			w.Header().Set("X-RateLimit-Limit", strconv.FormatInt(tightest[1], 10))
			w.Header().Set("X-RateLimit-Remaining", strconv.FormatInt(tightest[2], 10))
			w.Header().Set("X-RateLimit-Reset", seconds(tightest[4]))
		}
		if !allowed {
			deny(w, retryAfter)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// A hotLease takes units of a hot key in bulk and spends them here: one call to Redis for `lease` requests. Never
// more than the policy admits is charged. What is leased may be spent later, or be lost when this ends.
type hotLease struct {
	sync.Mutex
	left    int64
	retryAt time.Time
}

// take answers 0, or the ms to wait.
func (l *hotLease) take() (int64, error) {
	l.Lock()
	defer l.Unlock()
	if l.left == 0 && !time.Now().Before(l.retryAt) {
		granted, _, retryAfter, err := call("RL.SLIDINGLOG", "limit:hot", 1_000, 3_600_000, "*", "COST", lease, "PARTIAL")
		if err != nil {
			return 0, err
		}
		l.left, l.retryAt = granted, time.Now().Add(time.Duration(retryAfter)*time.Millisecond)
	}
	if l.left == 0 {
		return time.Until(l.retryAt).Milliseconds() + 1, nil
	}
	l.left--
	return 0, nil
}
