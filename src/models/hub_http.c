/* hub_http.c: see hub_http.h. The one file beside hub_pull.c that knows libcurl. */
#include "models/hub_http.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/error.h"
#include "base/mem.h"

double http_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

bool http_sleep(const http_client *c, double seconds)
{
    for (double end = http_now() + seconds; http_now() < end;) {
        if (!c->alive(c->user)) return false;
        nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
    }
    return c->alive(c->user);
}

/* ---- headers --------------------------------------------------------------------------------- */

// Copies a header's value, cut at the field's size, without its spaces and line end.
static void keep(char *out, size_t size, const char *value, size_t n)
{
    while (n && isspace((unsigned char)value[n - 1]))
        n--;
    if (n >= size) n = size - 1;
    memcpy(out, value, n);
    out[n] = 0;
}

// An ETag without W/ and quotes.
static void keep_tag(char *out, size_t size, const char *value, size_t n)
{
    if (n > 2 && !strncmp(value, "W/", 2)) value += 2, n -= 2;
    keep(out, size, value, n);
    size_t m = strlen(out);
    if (m < 2 || out[0] != '"' || out[m - 1] != '"') return;
    memmove(out, out + 1, m - 2);
    out[m - 2] = 0;
}

// Link: <https://…>; rel="next"
static void keep_next(char *out, size_t size, const char *value, size_t n)
{
    char line[2200];
    keep(line, sizeof line, value, n);
    char *end = strchr(line, '>');
    if (line[0] == '<' && end && strstr(end, "rel=\"next\""))
        keep(out, size, line + 1, (size_t)(end - line - 1));
}

static void keep_patience(http_head *h, const char *value, size_t n)
{
    char text[64], *end;
    keep(text, sizeof text, value, n);
    double seconds = strtod(text, &end);
    if (end == text) { // a date
        time_t at = curl_getdate(text, NULL);
        if (at < 0) return;
        seconds = difftime(at, time(NULL));
    }
    h->retry_after = seconds > 0 ? seconds : 0;
}

static size_t on_header(char *line, size_t size, size_t n, void *user)
{
    http_head *h = user;
    n *= size;
    char *colon = memchr(line, ':', n);
    if (!colon) {
        // The first line of a reply (also of an interim one): forget the one before.
        if (n > 5 && !strncmp(line, "HTTP/", 5))
            *h = (http_head){ .linked_size = -1, .retry_after = -1 };
        return n;
    }
    size_t name = (size_t)(colon - line), at = name + 1;
    while (at < n && (line[at] == ' ' || line[at] == '\t'))
        at++;
    const char *v = line + at;
    size_t m = n - at;
#define IS(word) (name == sizeof(word) - 1 && !strncasecmp(line, word, name))
    if (IS("etag"))
        keep(h->etag, sizeof h->etag, v, m);
    else if (IS("x-linked-etag"))
        keep_tag(h->linked_etag, sizeof h->linked_etag, v, m);
    else if (IS("x-repo-commit"))
        keep(h->commit, sizeof h->commit, v, m);
    else if (IS("content-range"))
        keep(h->range, sizeof h->range, v, m);
    else if (IS("x-error-code"))
        keep(h->code, sizeof h->code, v, m);
    else if (IS("x-error-message"))
        keep(h->why, sizeof h->why, v, m);
    else if (IS("link"))
        keep_next(h->next, sizeof h->next, v, m);
    else if (IS("retry-after"))
        keep_patience(h, v, m);
    else if (IS("x-linked-size")) {
        char text[32];
        keep(text, sizeof text, v, m);
        h->linked_size = *text && strspn(text, "0123456789") == strlen(text) ? atoll(text) : -1;
    }
#undef IS
    return n;
}

/* ---- requests -------------------------------------------------------------------------------- */

CURL *http_new(const http_client *c, http_head *head)
{
    CURL *e = curl_easy_init();
    if (!e) return NULL;
    char agent[64];
    snprintf(agent, sizeof agent, "infer/%s", infer_version());
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    curl_easy_setopt(e, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    curl_easy_setopt(e, CURLOPT_USERAGENT, agent);
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L);
    // Several streams in one HTTP/2 connection share one window: no faster than a single one.
    curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT, (long)(c->timeout < 15 ? c->timeout : 15));
    curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, (long)c->timeout);
    curl_easy_setopt(e, CURLOPT_BUFFERSIZE, 256L << 10);
    curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(e, CURLOPT_HEADERDATA, head);
    return e;
}

bool http_same_origin(const char *a, const char *b)
{
    static const CURLUPart parts[] = { CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT };
    CURLU *u = curl_url(), *v = curl_url();
    bool same =
        u && v && !curl_url_set(u, CURLUPART_URL, a, 0) && !curl_url_set(v, CURLUPART_URL, b, 0);
    for (int i = 0; same && i < 3; i++) {
        char *x = NULL, *y = NULL;
        same = !curl_url_get(u, parts[i], &x, CURLU_DEFAULT_PORT) &&
               !curl_url_get(v, parts[i], &y, CURLU_DEFAULT_PORT) && !strcasecmp(x, y);
        curl_free(x);
        curl_free(y);
    }
    curl_url_cleanup(u);
    curl_url_cleanup(v);
    return same;
}

infer_status http_aim(CURL *easy, struct curl_slist **list, const http_client *c, http_head *head,
                      const char *url, const char *const *extra, infer_error *err)
{
    char line[1200];
    struct curl_slist *all = NULL;
    bool ok = true;
    curl_slist_free_all(*list);
    *list = NULL;
    for (; extra && *extra && ok; extra++) {
        struct curl_slist *more = curl_slist_append(all, *extra);
        if (more) all = more;
        ok = more;
    }
    if (c->token && http_same_origin(url, c->endpoint)) {
        snprintf(line, sizeof line, "Authorization: Bearer %s", c->token);
        struct curl_slist *more = curl_slist_append(all, line);
        if (more) all = more;
        ok = ok && more;
    }
    *list = all;
    *head = (http_head){ .linked_size = -1, .retry_after = -1 };
    if (!ok || curl_easy_setopt(easy, CURLOPT_URL, url) ||
        curl_easy_setopt(easy, CURLOPT_HTTPHEADER, all))
        return error_set(err, INFER_NOMEM, "%s: out of memory", c->repo);
    return INFER_OK;
}

bool http_is_redirect(long status)
{
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

bool http_may_follow(const char *from, const char *to)
{
    if (!strncasecmp(to, "https://", 8)) return true;
    return !strncasecmp(to, "http://", 7) && strncasecmp(from, "https://", 8);
}

infer_status http_redirect(char **next, CURL *easy, const http_client *c, const char *from,
                           infer_error *err)
{
    char *to = NULL;
    *next = NULL;
    curl_easy_getinfo(easy, CURLINFO_REDIRECT_URL, &to);
    if (!to) return error_set(err, INFER_IO, "%s: a redirect that leads nowhere", c->repo);
    if (!http_may_follow(from, to))
        return error_set(err, INFER_IO, "%s: redirect from %.*s to '%.100s' is refused", c->repo,
                         (int)strcspn(from, ":"), from, to);
    *next = mem_strdup(to);
    return *next ? INFER_OK : error_set(err, INFER_NOMEM, "%s: out of memory", c->repo);
}

infer_status http_refusal(const http_client *c, const char *what, long status,
                          const http_head *head, infer_error *err)
{
    bool gated = !strcmp(head->code, "GatedRepo") || strstr(head->why, "gated");
    if ((status == 401 || status == 403) && c->token)
        return error_set(err, INFER_IO,
                         "%s: the hub refuses the token (HF_TOKEN) for %s (%ld%s%s): accept the "
                         "model's terms at %s/%s with the account of the token",
                         c->repo, what, status, *head->why ? ": " : "", head->why, c->endpoint,
                         c->repo);
    if (status == 401 || status == 403)
        return error_set(err, INFER_IO,
                         "%s: the hub wants to know who asks (%ld): %s: accept its terms at %s/%s "
                         "and set HF_TOKEN",
                         c->repo, status,
                         gated ? "the model is gated" : "the model is gated, private or not there",
                         c->endpoint, c->repo);
    if (status == 404 && !strcmp(head->code, "RevisionNotFound"))
        return error_set(err, INFER_NOT_FOUND, "%s: the hub has no such revision", c->repo);
    if (status == 404)
        return error_set(err, INFER_NOT_FOUND, "%s: the hub does not have %s (404)", c->repo, what);
    if (status == 429)
        return error_set(err, INFER_IO, "%s: the hub has too many requests (429)%s", c->repo,
                         c->token ? "" : ": HF_TOKEN raises its limits");
    return error_set(err, INFER_IO, "%s: %s: the hub answers %ld%s%s", c->repo, what, status,
                     *head->why ? ": " : "", head->why);
}

double http_delay(CURLcode code, long status, const http_head *head, int tries)
{
    static const CURLcode hopeless[] = {
        CURLE_UNSUPPORTED_PROTOCOL,     CURLE_URL_MALFORMAT,      CURLE_OUT_OF_MEMORY,
        CURLE_PEER_FAILED_VERIFICATION, CURLE_SSL_CACERT_BADFILE, CURLE_ABORTED_BY_CALLBACK,
    };
    for (size_t i = 0; i < sizeof hopeless / sizeof *hopeless; i++)
        if (code == hopeless[i]) return -1;
    bool worth = code != CURLE_OK || status == 408 || status == 429 || status >= 500;
    if (!worth || tries >= HTTP_MAX_TRIES) return -1;
    if (head->retry_after >= 0 && (status == 429 || status == 503))
        return head->retry_after > HTTP_MAX_PATIENCE ? -1 : head->retry_after;
    return 0.25 * (double)(1 << (tries - 1)); // 0.25, 0.5, … 4 s
}

void http_tell_wait(const http_client *c, const char *what, long status, const http_head *head,
                    double delay)
{
    if (head->retry_after >= 1 && (status == 429 || status == 503))
        log_line(c->log, INFER_LOG_INFO, "%s: the hub answers %ld: waiting %.0f s", what, status,
                 delay);
}

typedef struct body {
    char *text;
    size_t n, cap, limit;
    bool too_long;
    const http_client *client;
} body;

static size_t on_body(char *data, size_t size, size_t n, void *user)
{
    body *b = user;
    n *= size;
    b->too_long = b->n + n > b->limit;
    if (b->too_long || mem_reserve((void **)&b->text, &b->cap, b->n + n + 1, 1, NULL)) return 0;
    memcpy(b->text + b->n, data, n);
    b->n += n;
    return n;
}

static int on_progress(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    const http_client *client = user;
    (void)a, (void)b, (void)c, (void)d;
    return !client->alive(client->user);
}

// One request with its tries; a redirect is an ordinary reply.
static infer_status get_once(body *b, long *status, CURL *easy, http_head *head, const char *what,
                             infer_error *err)
{
    char detail[CURL_ERROR_SIZE] = "";
    const http_client *c = b->client;
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, detail);
    for (int tries = 1;; tries++) {
        b->n = 0;
        *status = 0;
        CURLcode code = curl_easy_perform(easy);
        curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, status);
        curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, NULL);
        if (!c->alive(c->user)) return error_set(err, INFER_CANCELLED, "%s: cancelled", c->repo);
        if (code == CURLE_OK && (*status == 200 || http_is_redirect(*status))) return INFER_OK;
        if (b->too_long)
            return error_set(err, INFER_LIMIT, "%s: %s has more than %zu bytes", c->repo, what,
                             b->limit);
        double delay = http_delay(code, *status, head, tries);
        if (delay < 0 && code)
            return error_set(err, INFER_IO, "%s: %s: %s", c->repo, what,
                             *detail ? detail : curl_easy_strerror(code));
        if (delay < 0) return http_refusal(c, what, *status, head, err);
        http_tell_wait(c, what, *status, head, delay);
        if (!http_sleep(c, delay)) return error_set(err, INFER_CANCELLED, "%s: cancelled", c->repo);
        curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, detail);
    }
}

infer_status http_get(char **text, size_t *n, const http_client *c, http_head *head,
                      const char *url, const char *what, size_t limit, infer_error *err)
{
    body b = { .limit = limit, .client = c };
    struct curl_slist *list = NULL;
    long status = 0;
    char *at = mem_strdup(url);
    CURL *easy = http_new(c, head);
    infer_status s = INFER_OK;
    if (!easy || !at) s = error_set(err, INFER_NOMEM, "%s: out of memory", c->repo);
    if (!s) {
        curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
        curl_easy_setopt(easy, CURLOPT_WRITEDATA, &b);
        curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
        curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, on_progress);
        curl_easy_setopt(easy, CURLOPT_XFERINFODATA, c);
    }
    for (int hops = 0; !s; hops++) {
        s = http_aim(easy, &list, c, head, at, NULL, err);
        if (!s) s = get_once(&b, &status, easy, head, what, err);
        if (s || !http_is_redirect(status)) break;
        char *next;
        if (hops == HTTP_MAX_REDIRECTS)
            s = error_set(err, INFER_IO, "%s: %s: more than %d redirects", c->repo, what,
                          HTTP_MAX_REDIRECTS);
        else if (!(s = http_redirect(&next, easy, c, at, err)))
            mem_free(at), at = next;
    }
    if (!s && !b.text && mem_reserve((void **)&b.text, &b.cap, 1, 1, NULL))
        s = error_set(err, INFER_NOMEM, "%s: out of memory", c->repo);
    if (s) {
        mem_free(b.text);
    } else {
        b.text[b.n] = 0;
        *text = b.text;
        *n = b.n;
    }
    if (easy) curl_easy_cleanup(easy);
    curl_slist_free_all(list);
    mem_free(at);
    return s;
}

char *http_encode(arena *mem, const char *s, bool keep_slash)
{
    char *out = arena_alloc(mem, strlen(s) * 3 + 1, 1);
    for (char *p = out; p; s++) {
        if (!*s) {
            *p = 0;
            break;
        }
        if (isalnum((unsigned char)*s) || strchr("-._~", *s) || (*s == '/' && keep_slash))
            *p++ = *s;
        else
            p += snprintf(p, 4, "%%%02X", (unsigned char)*s);
    }
    return out;
}
