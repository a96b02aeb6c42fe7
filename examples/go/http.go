package main

import (
	"crypto/sha256"
	"fmt"
	"log"
	"net"
	"net/http"
	"strconv"

	"github.com/gomodule/redigo/redis"
)

func seconds(ms int64) string { return strconv.FormatInt((ms+999)/1000, 10) }

func address(r *http.Request) string {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	return host
}

// tag begins a caller's keys, so that a cluster keeps them on one node. Hashed: no secret and no brace gets in.
func tag(r *http.Request) string {
	caller := r.Header.Get("X-Api-Key")
	if caller == "" {
		caller = address(r)
	}
	return fmt.Sprintf("limit:{%.8x}", sha256.Sum256([]byte(caller)))
}

func deny(w http.ResponseWriter, retryAfter int64) {
	if retryAfter > 0 { // none for -1: never
		w.Header().Set("Retry-After", seconds(retryAfter))
	}
	http.Error(w, `{"error":"too much"}`, http.StatusTooManyRequests)
}

// Tokens cost money: where the middleware is not asked, no Redis means no.
func closed(w http.ResponseWriter) {
	http.Error(w, `{"error":"try again later"}`, http.StatusServiceUnavailable)
}

// chat reserves what the answer may take, then settles what it took. `used` stands for what the model tells.
func chat(w http.ResponseWriter, r *http.Request) {
	key := tag(r) + ":tokens"
	estimate, _ := strconv.ParseInt(r.URL.Query().Get("estimate"), 10, 64)
	used, _ := strconv.ParseInt(r.URL.Query().Get("used"), 10, 64)
	allowed, remaining, retryAfter, err := call("RL.TOKEN", key, 10_000, 3_600_000, "*", "COST", estimate)
	if err == nil && allowed == 0 {
		deny(w, retryAfter)
		return
	}
	if err == nil && used > estimate { // what was taken is taken: it may become a debt
		_, remaining, _, err = call("RL.TOKEN", key, 10_000, 3_600_000, "*", "COST", used-estimate, "FORCE")
	} else if err == nil && used < estimate {
		conn := pool.Get()
		defer conn.Close()
		remaining, err = redis.Int64(conn.Do("RL.REFUND", key, estimate-used, "*"))
	}
	if err != nil {
		closed(w)
		return
	}
	fmt.Fprintf(w, `{"remaining":%d}`, remaining)
}

func main() {
	ok := func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `{"ok":true}`) }
	hot := &hotLease{}
	http.Handle("/api", rateLimit(http.HandlerFunc(ok)))
	http.HandleFunc("/chat", chat)
	http.HandleFunc("/hot", func(w http.ResponseWriter, r *http.Request) {
		if wait, err := hot.take(); err != nil {
			closed(w)
		} else if wait > 0 {
			deny(w, wait)
		} else {
			ok(w, r)
		}
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+env("PORT", "8000"), nil))
}
