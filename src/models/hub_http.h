/*
 * hub_http.h: requests to a hub, one layer above libcurl: what the hub's headers say, who may see
 * the token, which redirects are followed, what is worth another try.
 *
 * Redirects are followed here and not by libcurl: at most HTTP_MAX_REDIRECTS, never from https to
 * http, and the token goes to the endpoint's own scheme, host and port alone.
 */
#ifndef MODELS_HUB_HTTP_H
#define MODELS_HUB_HTTP_H

#include <curl/curl.h>

#include "base/arena.h"
#include "infer_tools.h"

#define HTTP_MAX_REDIRECTS 8
#define HTTP_MAX_TRIES 6        // without a byte in between
#define HTTP_MAX_PATIENCE 600.0 // seconds that a server may ask for

typedef struct http_client {
    const char *endpoint, *token; // token may be NULL
    const char *repo;             // for messages
    int timeout;                  // seconds
    bool (*alive)(void *user);    // false: give up, INFER_CANCELLED
    void *user;
    const infer_log *log; // told of long waits
} http_client;

/* What a reply's headers said; strings are "" where absent. */
typedef struct http_head {
    char etag[256];
    char linked_etag[128], commit[64];
    char range[96];          // Content-Range
    char code[48], why[256]; // X-Error-Code, X-Error-Message
    char next[2048];         // Link: <…>; rel="next"
    int64_t linked_size;     // -1
    double retry_after;      // seconds; -1
} http_head;

/* A handle with what all requests share; its replies' headers go to *head. NULL without memory. */
CURL *http_new(const http_client *c, http_head *head);
/* Sets address and headers of the next request; *list is freed and made anew, its owner is the
 * caller (curl_slist_free_all). Extra lines end with NULL. */
infer_status http_aim(CURL *easy, struct curl_slist **list, const http_client *c, http_head *head,
                      const char *url, const char *const *extra, infer_error *err);
/* Whether two addresses have the same scheme, host and port: the token goes nowhere else. */
bool http_same_origin(const char *a, const char *b);
/* Whether a redirect may be followed: to https, or from http to http. */
bool http_may_follow(const char *from, const char *to);
/* The address that a redirect leads to, checked; freed with mem_free. */
infer_status http_redirect(char **next, CURL *easy, const http_client *c, const char *from,
                           infer_error *err);
/* A status that ends the work, as a message: what to do about 401, 403, 404, 429. */
infer_status http_refusal(const http_client *c, const char *what, long status,
                          const http_head *head, infer_error *err);
/* Seconds to wait before try number `tries` + 1, or -1 where another try is useless. */
double http_delay(CURLcode code, long status, const http_head *head, int tries);
/* Says that a server asked for patience, where it did. */
void http_tell_wait(const http_client *c, const char *what, long status, const http_head *head,
                    double delay);
/* Whether the reply is a redirect. */
bool http_is_redirect(long status);
double http_now(void);
/* Waits; false where the client is no longer alive. */
bool http_sleep(const http_client *c, double seconds);

/* GET of a small document with redirects and tries; *body is freed with mem_free. head may be
 * looked at after success. */
infer_status http_get(char **body, size_t *n, const http_client *c, http_head *head,
                      const char *url, const char *what, size_t limit, infer_error *err);
/* s percent-encoded, '/' kept where keep_slash; the arena's. */
char *http_encode(arena *mem, const char *s, bool keep_slash);

#endif
