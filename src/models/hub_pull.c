/*
 * hub_pull.c: fetching the files of a model: several ranges at once, resumed where an earlier pull
 * ended, checked before they get their names.
 *
 * A file is cut into chunks. A transfer (one connection) fetches the rest of one chunk after
 * another; X.part holds the bytes at their places and X.part.state how many of each chunk are
 * there:
 *
 *   0   8  "infpart1"
 *   8   8  size of the file
 *  16   8  size of a chunk
 *  24  64  checksum that the hub gave (hex, zero-padded): another content starts from nothing
 *  88 8n   bytes present from each chunk's start
 *
 * all little-endian. Bytes are written before they are counted, so a killed pull counts too little
 * and never too much. Checksums run along behind what has arrived without a gap.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/sha.h"
#include "models/hub_http.h"
#include "models/store.h"

#define ENDPOINT "https://huggingface.co"
#define MAX_CONNECTIONS 16
#define MAX_CHUNKS 4096
#define MIN_CHUNK ((uint64_t)16 << 20)
#define MAX_LISTING ((size_t)32 << 20) // bytes of one page
#define MAX_PAGES 200
#define MAX_RESTARTS 3             // of a file whose server gives no ranges
#define COUNT_EVERY (1u << 20)     // bytes between two notes in the state file
#define HASH_AT_ONCE (8u << 20)    // bytes, so that transfers do not starve
#define SPARE ((uint64_t)16 << 20) // bytes of the disk that are left free

typedef struct chunk {
    uint64_t begin, size, done, counted;
    bool busy;
} chunk;

typedef struct part {
    const hub_entry *e;
    const char *path, *temp, *state, *url; // final name, X.part, X.part.state, address
    char *location;                        // where redirects led to, or NULL
    char etag[256];                        // of that place's first reply
    int fd, state_fd;                      // -1: closed
    chunk *chunks;
    int n_chunks, restarts;
    uint64_t chunk_size, hashed;
    bool whole; // the server gives no ranges: one stream from the start
    bool finished;
    sha_state sha;
} part;

typedef struct pull pull;

// What a transfer's reply has turned out to be.
typedef enum verdict { UNDECIDED, WANTED, NO_RANGE, IGNORED, FATAL } verdict;

typedef struct transfer {
    pull *p;
    CURL *easy;
    struct curl_slist *headers;
    http_head head;
    part *part; // NULL: idle
    chunk *chunk;
    char *url;
    bool running, at_location;
    int hops, tries;
    uint64_t got; // bytes of this try
    double not_before;
    verdict verdict;
    char detail[CURL_ERROR_SIZE];
} transfer;

struct pull {
    const infer_hub_options *o;
    http_client client;
    infer_error *err;
    infer_status status; // the first failure
    arena mem;
    hub_name name;
    hub_tree tree;
    hub_choice choice;
    const char *revision, *folder, *snapshot;
    char commit[41];
    part *parts;
    transfer t[MAX_CONNECTIONS];
    int n_connections;
    CURLM *multi;
    infer_pull_progress progress;
};

#define FAIL(p, code, ...) ((p)->status = error_set((p)->err, code, __VA_ARGS__))

static infer_status no_memory(pull *p)
{
    return FAIL(p, INFER_NOMEM, "%s: out of memory", p->name.repo);
}

static bool alive(void *user)
{
    pull *p = user;
    return !p->o->progress || p->o->progress(&p->progress, p->o->user);
}

static infer_status cancelled(pull *p)
{
    return FAIL(p, INFER_CANCELLED, "%s: cancelled", p->name.repo);
}

/* ---- what there is --------------------------------------------------------------------------- */

// The commit that a revision is now: everything after this speaks of that commit alone.
static infer_status ask_commit(pull *p)
{
    http_head head;
    char *text, *url = arena_printf(&p->mem, "%s/api/models/%s/revision/%s", p->client.endpoint,
                                    p->name.repo, http_encode(&p->mem, p->revision, false));
    size_t n;
    if (!url) return no_memory(p);
    p->status = http_get(&text, &n, &p->client, &head, url, "the model", MAX_LISTING, p->err);
    if (p->status) return p->status;
    json_error_t why;
    json_t *root = json_loadb(text, n, 0, &why);
    const char *sha = json_string_value(json_object_get(root, "sha"));
    if (!root)
        FAIL(p, INFER_FORMAT, "%s: the hub's answer is no JSON: line %d: %s", p->name.repo,
             why.line, why.text);
    else if (!sha || strlen(sha) != 40 || strspn(sha, "0123456789abcdef") != 40)
        FAIL(p, INFER_FORMAT, "%s: the hub's answer has no commit of 40 hex digits", p->name.repo);
    else
        memcpy(p->commit, sha, 41);
    json_decref(root);
    mem_free(text);
    return p->status;
}

static infer_status ask_tree(pull *p)
{
    http_head head;
    char *url = arena_printf(&p->mem, "%s/api/models/%s/tree/%s?recursive=1", p->client.endpoint,
                             p->name.repo, p->commit);
    if (!url) return no_memory(p);
    for (int page = 0; !p->status; page++) {
        char *text;
        size_t n;
        if (page == MAX_PAGES)
            return FAIL(p, INFER_LIMIT, "%s: a listing of more than %d pages", p->name.repo, page);
        p->status =
            http_get(&text, &n, &p->client, &head, url, "the list of files", MAX_LISTING, p->err);
        if (p->status) return p->status;
        p->status = hub_tree_add(&p->tree, text, n, &p->mem, p->err);
        mem_free(text);
        if (p->status || !*head.next) break;
        url = arena_strndup(&p->mem, head.next, strlen(head.next));
        if (!url) return no_memory(p);
    }
    if (!p->status) p->status = hub_tree_end(&p->tree, p->err);
    if (p->status) return error_prefix(p->err, "%s", p->name.repo);
    return p->status = hub_choose(&p->choice, &p->tree, &p->name, &p->mem, p->err);
}

/* ---- parts on disk --------------------------------------------------------------------------- */

static const char *digest(const hub_entry *e) { return *e->sha256 ? e->sha256 : e->sha1; }

static void put_u64(uint8_t *out, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(v >> 8 * i);
}

static uint64_t get_u64(const uint8_t *in)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | in[i];
    return v;
}

#define STATE_HEAD 88

static void fill_head(uint8_t head[STATE_HEAD], const part *f)
{
    memset(head, 0, STATE_HEAD);
    memcpy(head, "infpart1", 8);
    put_u64(head + 8, f->e->size);
    put_u64(head + 16, f->chunk_size);
    memcpy(head + 24, digest(f->e), strlen(digest(f->e)));
}

static void start_hash(part *f)
{
    char header[40];
    f->hashed = 0;
    if (*f->e->sha256) {
        sha256_init(&f->sha);
        return;
    }
    sha1_init(&f->sha);
    int n = snprintf(header, sizeof header, "blob %llu", (unsigned long long)f->e->size);
    sha_add(&f->sha, header, (size_t)n + 1);
}

// Reads how far an earlier pull came; whatever does not fit counts as nothing there.
static void read_state(part *f)
{
    size_t n = STATE_HEAD + 8 * (size_t)f->n_chunks, size;
    uint8_t head[STATE_HEAD];
    char *text;
    struct stat st;
    if (lstat(f->temp, &st) || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != f->e->size) return;
    if (file_read(f->state, n, &text, &size, NULL)) return;
    fill_head(head, f);
    for (int i = 0; size == n && !memcmp(text, head, STATE_HEAD) && i < f->n_chunks; i++) {
        uint64_t done = get_u64((uint8_t *)text + STATE_HEAD + 8 * i);
        chunk *c = &f->chunks[i];
        c->done = c->counted = done <= c->size ? done : 0;
    }
    mem_free(text);
}

static void forget(part *f)
{
    for (int i = 0; i < f->n_chunks; i++)
        f->chunks[i].done = f->chunks[i].counted = 0;
    start_hash(f);
}

static infer_status file_error(pull *p, const char *path)
{
    return FAIL(p, INFER_IO, "%s: %s", path, strerror(errno));
}

static infer_status open_part(pull *p, part *f)
{
    uint8_t head[STATE_HEAD], zero[8] = { 0 };
    if (f->fd >= 0) return INFER_OK;
    // No O_TRUNC: what is there is gone on with. Links are not followed.
    f->fd = open(f->temp, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (f->fd < 0) return file_error(p, f->temp);
    f->state_fd = open(f->state, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (f->state_fd < 0) return file_error(p, f->state);
    fill_head(head, f);
    bool ok = ftruncate(f->fd, (off_t)f->e->size) == 0 &&
              pwrite(f->state_fd, head, STATE_HEAD, 0) == STATE_HEAD;
    for (int i = 0; ok && i < f->n_chunks; i++) {
        put_u64(zero, f->chunks[i].done);
        ok = pwrite(f->state_fd, zero, 8, STATE_HEAD + 8 * i) == 8;
    }
    return ok ? INFER_OK : file_error(p, f->temp);
}

static void close_part(part *f)
{
    if (f->fd >= 0) close(f->fd);
    if (f->state_fd >= 0) close(f->state_fd);
    f->fd = f->state_fd = -1;
}

// Notes how much of a chunk is there.
static infer_status count_chunk(pull *p, part *f, chunk *c)
{
    uint8_t v[8];
    if (c->counted == c->done) return INFER_OK;
    put_u64(v, c->done);
    if (pwrite(f->state_fd, v, 8, STATE_HEAD + 8 * (off_t)(c - f->chunks)) != 8)
        return file_error(p, f->state);
    c->counted = c->done;
    return INFER_OK;
}

static infer_status plan_part(pull *p, part *f, const hub_entry *e)
{
    *f = (part){ .e = e, .fd = -1, .state_fd = -1 };
    f->path = arena_printf(&p->mem, "%s/%s", p->snapshot, e->path);
    f->temp = arena_printf(&p->mem, "%s/%s.part", p->snapshot, e->path);
    f->state = arena_printf(&p->mem, "%s/%s.part.state", p->snapshot, e->path);
    f->url = arena_printf(&p->mem, "%s/%s/resolve/%s/%s", p->client.endpoint, p->name.repo,
                          p->commit, http_encode(&p->mem, e->path, true));
    f->chunk_size = e->size / MAX_CHUNKS + 1;
    if (f->chunk_size < MIN_CHUNK) f->chunk_size = MIN_CHUNK;
    f->n_chunks = (int)((e->size + f->chunk_size - 1) / f->chunk_size);
    f->chunks = arena_zero(&p->mem, (size_t)f->n_chunks + 1, sizeof *f->chunks);
    if (!f->path || !f->temp || !f->state || !f->url || !f->chunks) return no_memory(p);
    for (int i = 0; i < f->n_chunks; i++) {
        chunk *c = &f->chunks[i];
        c->begin = f->chunk_size * (uint64_t)i;
        c->size = e->size - c->begin < f->chunk_size ? e->size - c->begin : f->chunk_size;
    }
    struct stat st;
    f->finished = !lstat(f->path, &st) && S_ISREG(st.st_mode) && (uint64_t)st.st_size == e->size;
    p->progress.total += e->size;
    if (f->finished) {
        p->progress.done += e->size;
        return INFER_OK;
    }
    start_hash(f);
    read_state(f);
    for (int i = 0; i < f->n_chunks; i++)
        p->progress.done += f->chunks[i].done;
    return store_folders(f->path, p->err);
}

// A file that another commit has already got: the same bytes under a second name.
static void link_from_others(pull *p, part *f, const json_t *pulls)
{
    size_t i, k;
    const json_t *record, *file;
    json_array_foreach(pulls, i, record)
    {
        const char *commit = json_string_value(json_object_get(record, "commit"));
        if (!json_is_true(json_object_get(record, "complete")) || !strcmp(commit, p->commit))
            continue;
        json_array_foreach(json_object_get(record, "files"), k, file)
        {
            const char *path = json_string_value(json_object_get(file, "path"));
            const char *sha = json_string_value(json_object_get(file, "sha256"));
            struct stat st;
            if (!path || !sha || strcmp(sha, f->e->sha256)) continue;
            char *old = arena_printf(&p->mem, "%s/%s/%s", p->folder, commit, path);
            if (!old || lstat(old, &st) || !S_ISREG(st.st_mode) ||
                (uint64_t)st.st_size != f->e->size || link(old, f->path))
                continue;
            unlink(f->temp);
            unlink(f->state);
            f->finished = true;
            for (int c = 0; c < f->n_chunks; c++)
                p->progress.done += f->chunks[c].size - f->chunks[c].done;
            return;
        }
    }
}

static infer_status check_space(pull *p)
{
    struct statvfs v;
    uint64_t need = p->progress.total - p->progress.done;
    if (!need || statvfs(p->folder, &v)) return INFER_OK;
    uint64_t room = (uint64_t)v.f_bavail * v.f_frsize;
    if (room >= need + SPARE) return INFER_OK;
    return FAIL(p, INFER_LIMIT, "%s: needs %.2f GB more, %s has %.2f GB free", p->name.repo,
                (double)need / 1e9, p->o->store, (double)room / 1e9);
}

static infer_status plan(pull *p, const json_t *pulls)
{
    p->parts = arena_zero(&p->mem, (size_t)p->choice.n + 1, sizeof *p->parts);
    if (!p->parts) return no_memory(p);
    p->progress.n_files = p->choice.n;
    for (int i = 0; i < p->choice.n && !p->status; i++)
        p->status = plan_part(p, &p->parts[i], p->choice.v[i]);
    for (int i = 0; i < p->choice.n && !p->status; i++)
        if (!p->parts[i].finished && *p->parts[i].e->sha256)
            link_from_others(p, &p->parts[i], pulls);
    p->progress.resumed = p->progress.done;
    return p->status ? p->status : check_space(p);
}

/* ---- checking -------------------------------------------------------------------------------- */

// Hashes at most `limit` of the bytes that are there without a gap.
static infer_status hash_some(pull *p, part *f, size_t limit)
{
    static const size_t piece = 1 << 18;
    uint64_t end = 0;
    for (int i = 0; i < f->n_chunks; i++) {
        end = f->chunks[i].begin + f->chunks[i].done;
        if (f->chunks[i].done < f->chunks[i].size) break;
    }
    if (f->fd < 0 || f->hashed >= end) return INFER_OK;
    uint8_t *buffer = mem_alloc(piece, 1);
    if (!buffer) return no_memory(p);
    for (size_t sum = 0; sum < limit && f->hashed < end && !p->status;) {
        size_t want = end - f->hashed < piece ? (size_t)(end - f->hashed) : piece;
        ssize_t n = pread(f->fd, buffer, want, (off_t)f->hashed);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            if (!n) errno = EIO; // somebody cut the file
            file_error(p, f->temp);
            break;
        }
        sha_add(&f->sha, buffer, (size_t)n);
        f->hashed += (uint64_t)n;
        sum += (size_t)n;
    }
    mem_free(buffer);
    return p->status;
}

static bool all_there(const part *f)
{
    for (int i = 0; i < f->n_chunks; i++)
        if (f->chunks[i].done < f->chunks[i].size) return false;
    return true;
}

static void sync_folder(const char *path)
{
    char folder[2048];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (!slash) return;
    *slash = 0;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) fsync(fd), close(fd);
}

// All bytes are there: the checksum decides between the file's name and deletion.
static infer_status finish_part(pull *p, part *f)
{
    char hex[65];
    p->progress.phase = INFER_PULL_CHECK;
    p->progress.file = f->e->path;
    while (!p->status && f->hashed < f->e->size) {
        hash_some(p, f, 4 * HASH_AT_ONCE);
        if (!p->status && !alive(p)) return cancelled(p);
    }
    p->progress.phase = INFER_PULL_FETCH;
    if (p->status) return p->status;
    sha_end(&f->sha, hex);
    if (strcmp(hex, digest(f->e))) {
        close_part(f);
        unlink(f->temp);
        unlink(f->state);
        return FAIL(p, INFER_FORMAT, "%s: %s: expected %s %s, found %s: deleted", p->name.repo,
                    f->e->path, *f->e->sha256 ? "SHA-256" : "git's SHA-1", digest(f->e), hex);
    }
    if (fsync(f->fd) || rename(f->temp, f->path)) return file_error(p, f->temp);
    close_part(f);
    unlink(f->state);
    sync_folder(f->path);
    f->finished = true;
    return INFER_OK;
}

/* ---- transfers ------------------------------------------------------------------------------- */

// Whether a Content-Range is the one that was asked for; a total of another size is FATAL.
static verdict judge_range(transfer *t)
{
    pull *p = t->p;
    chunk *c = t->chunk;
    unsigned long long first, last, total;
    char end;
    if (sscanf(t->head.range, "bytes %llu-%llu/%llu%c", &first, &last, &total, &end) != 3 ||
        first != c->begin + c->done || last != c->begin + c->size - 1) {
        FAIL(p, INFER_IO, "%s: %s: asked for bytes %llu to %llu, found '%s'", p->name.repo,
             t->part->e->path, (unsigned long long)(c->begin + c->done),
             (unsigned long long)(c->begin + c->size - 1), t->head.range);
        return FATAL;
    }
    if (total == t->part->e->size) return WANTED;
    FAIL(p, INFER_IO, "%s: %s: the hub lists %llu bytes, the server has %llu", p->name.repo,
         t->part->e->path, (unsigned long long)t->part->e->size, total);
    return FATAL;
}

// What the reply is, at its first byte or its end.
static verdict judge(transfer *t)
{
    pull *p = t->p;
    const hub_entry *e = t->part->e;
    long status = 0;
    curl_off_t length = -1;
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(t->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    if (status != 200 && status != 206) return IGNORED;
    if (status == 206) {
        verdict v = judge_range(t);
        if (v != WANTED) return v;
    } else if (t->chunk->begin || t->chunk->done || t->chunk->size != e->size) {
        return NO_RANGE;
    }
    uint64_t want = t->chunk->size - t->chunk->done;
    if (length < 0 || (uint64_t)length == want) return WANTED;
    FAIL(p, INFER_IO, "%s: %s: expected %llu bytes, the server announces %lld", p->name.repo,
         e->path, (unsigned long long)want, (long long)length);
    return FATAL;
}

// Where the bytes are is remembered: the hub is asked once for a file, not once for a chunk.
static void remember(transfer *t)
{
    part *f = t->part;
    if (f->location || !strcmp(t->url, f->url)) return;
    f->location = mem_strdup(t->url); // NULL: the hub is asked again
    memcpy(f->etag, t->head.etag, sizeof f->etag);
}

static size_t on_data(char *data, size_t size, size_t n, void *user)
{
    transfer *t = user;
    pull *p = t->p;
    chunk *c = t->chunk;
    n *= size;
    if (t->verdict == UNDECIDED && (t->verdict = judge(t)) == WANTED) remember(t);
    if (t->verdict == IGNORED) return n; // the text of an error or a redirect
    if (t->verdict != WANTED) return 0;
    if (n > c->size - c->done) {
        FAIL(p, INFER_IO, "%s: %s: the server sends more than the %llu bytes that it announced",
             p->name.repo, t->part->e->path, (unsigned long long)t->part->e->size);
        t->verdict = FATAL;
        return 0;
    }
    for (size_t at = 0; at < n;) {
        ssize_t k = pwrite(t->part->fd, data + at, n - at, (off_t)(c->begin + c->done));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) {
            file_error(p, t->part->temp);
            t->verdict = FATAL;
            return 0;
        }
        at += (size_t)k;
        c->done += (uint64_t)k;
    }
    t->got += n;
    p->progress.done += n;
    if (c->done - c->counted >= COUNT_EVERY && count_chunk(p, t->part, c)) {
        t->verdict = FATAL;
        return 0;
    }
    return n;
}

// Sends the request of a transfer that has a chunk.
static infer_status start(transfer *t)
{
    pull *p = t->p;
    part *f = t->part;
    char range[64], condition[300];
    const char *extra[3] = { NULL };
    int n = 0;
    uint64_t from = t->chunk->begin + t->chunk->done, to = t->chunk->begin + t->chunk->size - 1;
    if (!t->url) {
        t->at_location = f->location;
        t->url = mem_strdup(f->location ? f->location : f->url);
        if (!t->url) return no_memory(p);
    }
    if (!f->whole && f->e->size) {
        snprintf(range, sizeof range, "Range: bytes=%llu-%llu", (unsigned long long)from,
                 (unsigned long long)to);
        extra[n++] = range;
        // Only strong tags say that the bytes are the same.
        if (t->at_location && *f->etag == '"') {
            snprintf(condition, sizeof condition, "If-Range: %s", f->etag);
            extra[n++] = condition;
        }
    }
    if (http_aim(t->easy, &t->headers, &p->client, &t->head, t->url, extra, p->err))
        return p->status = p->err ? p->err->code : INFER_NOMEM;
    curl_easy_setopt(t->easy, CURLOPT_ERRORBUFFER, t->detail);
    curl_easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(t->easy, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(t->easy, CURLOPT_PRIVATE, t);
    t->detail[0] = 0;
    t->verdict = UNDECIDED;
    t->got = 0;
    if (curl_multi_add_handle(p->multi, t->easy)) return no_memory(p);
    t->running = true;
    return INFER_OK;
}

static void stop(transfer *t)
{
    if (t->running) curl_multi_remove_handle(t->p->multi, t->easy);
    t->running = false;
}

static void let_go(transfer *t)
{
    stop(t);
    mem_free(t->url);
    t->url = NULL;
    if (t->chunk) t->chunk->busy = false;
    t->chunk = NULL;
    t->part = NULL;
    t->tries = t->hops = 0;
    t->not_before = 0;
}

// The server gives no ranges: the file becomes one chunk that one transfer fetches from the start.
static infer_status restart_whole(transfer *t)
{
    pull *p = t->p;
    part *f = t->part;
    for (int i = 0; i < p->n_connections; i++)
        if (&p->t[i] != t && p->t[i].part == f) let_go(&p->t[i]);
    for (int i = 0; i < f->n_chunks; i++)
        p->progress.done -= f->chunks[i].done;
    if (p->progress.resumed > p->progress.done) p->progress.resumed = p->progress.done;
    forget(f);
    if (++f->restarts > MAX_RESTARTS)
        return FAIL(p, INFER_IO, "%s: %s: the server gives no ranges and breaks off every time",
                    p->name.repo, f->e->path);
    f->whole = true;
    f->n_chunks = 1;
    f->chunk_size = f->chunks[0].size = f->e->size;
    if (ftruncate(f->state_fd, 0)) return file_error(p, f->state);
    uint8_t head[STATE_HEAD + 8] = { 0 };
    fill_head(head, f);
    if (pwrite(f->state_fd, head, sizeof head, 0) != sizeof head) return file_error(p, f->state);
    t->chunk = &f->chunks[0];
    t->chunk->busy = true;
    return INFER_OK;
}

// Another try of the same chunk after a pause, or the end.
static infer_status retry(transfer *t, CURLcode code, long status)
{
    pull *p = t->p;
    if (t->got) t->tries = 0; // it went on: a bad line, not a dead one
    double delay = http_delay(code, status, &t->head, ++t->tries);
    if (t->part->whole && t->chunk->done) restart_whole(t);
    if (p->status) return p->status;
    if (delay < 0 && code)
        return FAIL(p, INFER_IO, "%s: %s: %s", p->name.repo, t->part->e->path,
                    *t->detail ? t->detail : curl_easy_strerror(code));
    if (delay < 0)
        return p->status = http_refusal(&p->client, t->part->e->path, status, &t->head, p->err);
    mem_free(t->url);
    t->url = NULL;
    t->hops = 0;
    t->not_before = http_now() + delay;
    http_tell_wait(&p->client, t->part->e->path, status, &t->head, delay);
    return INFER_OK;
}

static infer_status follow(transfer *t)
{
    pull *p = t->p;
    char *next;
    const hub_entry *e = t->part->e;
    if (*e->sha256 && strlen(t->head.linked_etag) == 64 && strcmp(t->head.linked_etag, e->sha256))
        return FAIL(p, INFER_IO, "%s: %s: the hub lists SHA-256 %s and announces %s", p->name.repo,
                    e->path, e->sha256, t->head.linked_etag);
    if (t->head.linked_size >= 0 && (uint64_t)t->head.linked_size != e->size)
        return FAIL(p, INFER_IO, "%s: %s: the hub lists %llu bytes and announces %lld",
                    p->name.repo, e->path, (unsigned long long)e->size,
                    (long long)t->head.linked_size);
    if (++t->hops > HTTP_MAX_REDIRECTS)
        return FAIL(p, INFER_IO, "%s: %s: more than %d redirects", p->name.repo, e->path,
                    HTTP_MAX_REDIRECTS);
    if (http_redirect(&next, t->easy, &p->client, t->url, p->err))
        return p->status = p->err ? p->err->code : INFER_IO;
    mem_free(t->url);
    t->url = next;
    return start(t);
}

// A transfer has ended, well or not.
static infer_status ended(transfer *t, CURLcode code)
{
    pull *p = t->p;
    part *f = t->part;
    chunk *c = t->chunk;
    long status = 0;
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    stop(t);
    if (p->status) return p->status;
    if (t->verdict == UNDECIDED && code == CURLE_OK) t->verdict = judge(t);
    if (p->status) return p->status;
    if (t->verdict == WANTED && count_chunk(p, f, c)) return p->status;
    if (t->verdict == WANTED && c->done == c->size) {
        let_go(t);
        return INFER_OK;
    }
    if (t->verdict == NO_RANGE) return restart_whole(t);
    if (code == CURLE_OK && http_is_redirect(status)) return follow(t);
    // An address that has expired: ask the hub for a new one.
    if (code == CURLE_OK && t->at_location && status >= 400 && status < 500 && status != 429) {
        mem_free(f->location);
        f->location = NULL;
        *f->etag = 0;
        if (t->tries < HTTP_MAX_TRIES) return retry(t, CURLE_RECV_ERROR, 0);
    }
    if (status == 416 && code == CURLE_OK)
        return FAIL(p, INFER_IO,
                    "%s: %s: the server has less than the %llu bytes that the hub lists",
                    p->name.repo, f->e->path, (unsigned long long)f->e->size);
    if (code == CURLE_OK && t->verdict == WANTED) code = CURLE_PARTIAL_FILE;
    return retry(t, code, status);
}

// The next chunk that nobody fetches, in the files' order.
static infer_status take_chunk(transfer *t)
{
    pull *p = t->p;
    for (int i = 0; i < p->choice.n; i++) {
        part *f = &p->parts[i];
        if (f->finished) continue;
        for (int k = 0; k < f->n_chunks; k++) {
            if (f->chunks[k].busy || f->chunks[k].done == f->chunks[k].size) continue;
            if (open_part(p, f)) return p->status;
            t->part = f;
            t->chunk = &f->chunks[k];
            t->chunk->busy = true;
            return INFER_OK;
        }
    }
    return INFER_OK;
}

// Starts what may start; *waiting is the time until the next one may, *active how many have work.
static infer_status start_all(pull *p, int *active, double *waiting)
{
    *active = 0;
    *waiting = 1e9;
    for (int i = 0; i < p->n_connections && !p->status; i++) {
        transfer *t = &p->t[i];
        if (!t->part && take_chunk(t)) return p->status;
        if (!t->part) continue;
        ++*active;
        double left = t->not_before - http_now();
        if (t->running)
            *waiting = 0;
        else if (left > 0)
            *waiting = left < *waiting ? left : *waiting;
        else
            start(t), *waiting = 0;
    }
    return p->status;
}

static infer_status collect(pull *p)
{
    int left;
    for (CURLMsg *m; !p->status && (m = curl_multi_info_read(p->multi, &left));) {
        transfer *t;
        if (m->msg != CURLMSG_DONE) continue;
        CURLcode code = m->data.result; // m dies when the handle leaves
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &t);
        ended(t, code);
    }
    return p->status;
}

// Finishes files that are whole, and hashes a little of one that is not.
static infer_status settle(pull *p)
{
    bool hashed = false;
    for (int i = 0; i < p->choice.n && !p->status; i++) {
        part *f = &p->parts[i];
        if (f->finished) continue;
        if (all_there(f)) {
            if (!open_part(p, f)) finish_part(p, f);
        } else if (f->fd >= 0 && !hashed) {
            uint64_t before = f->hashed;
            hash_some(p, f, HASH_AT_ONCE);
            hashed = f->hashed > before;
        }
    }
    return p->status;
}

static infer_status transfer_all(pull *p)
{
    int active = 0, running;
    double waiting;
    p->multi = curl_multi_init();
    if (!p->multi) return no_memory(p);
    for (int i = 0; i < p->n_connections; i++) {
        p->t[i].p = p;
        p->t[i].easy = http_new(&p->client, &p->t[i].head);
        if (!p->t[i].easy) return no_memory(p);
    }
    p->progress.phase = INFER_PULL_FETCH;
    if (!alive(p)) return cancelled(p);
    while (!settle(p) && !start_all(p, &active, &waiting) && active) {
        p->progress.phase = waiting > 0 ? INFER_PULL_WAIT : INFER_PULL_FETCH;
        for (int i = p->n_connections - 1; i >= 0; i--)
            if (p->t[i].part) p->progress.file = p->t[i].part->e->path;
        if (curl_multi_perform(p->multi, &running)) return no_memory(p);
        if (collect(p)) break;
        if (!alive(p)) return cancelled(p);
        curl_multi_poll(p->multi, NULL, 0, 100, NULL);
    }
    if (!p->status && !alive(p)) cancelled(p); // told that all is there
    return p->status;
}

static void end_transfers(pull *p)
{
    for (int i = 0; i < p->n_connections; i++) {
        transfer *t = &p->t[i];
        if (t->part && t->part->state_fd >= 0 && t->chunk->counted != t->chunk->done) {
            uint8_t v[8];
            put_u64(v, t->chunk->done);
            // A note that is lost costs a second of fetching again.
            if (pwrite(t->part->state_fd, v, 8,
                       STATE_HEAD + 8 * (off_t)(t->chunk - t->part->chunks)) != 8)
                log_line(&p->o->log, INFER_LOG_WARN, "%s: %s", t->part->state, strerror(errno));
        }
        if (t->p) let_go(t);
        if (t->easy) curl_easy_cleanup(t->easy);
        curl_slist_free_all(t->headers);
    }
    if (p->multi) curl_multi_cleanup(p->multi);
    for (int i = 0; p->parts && i < p->choice.n; i++) {
        close_part(&p->parts[i]);
        mem_free(p->parts[i].location);
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

static infer_status write_record(pull *p, json_t *pulls, bool complete)
{
    json_t *old = store_record(pulls, p->choice.file, p->commit), *files = json_array();
    bool was_complete = old && json_is_true(json_object_get(old, "complete"));
    for (int i = 0; i < p->choice.n; i++) {
        const hub_entry *e = p->choice.v[i];
        json_array_append_new(files, json_pack("{s:s,s:I,s:s}", "path", e->path, "size",
                                               (json_int_t)e->size, *e->sha256 ? "sha256" : "sha1",
                                               digest(e)));
    }
    json_t *record =
        json_pack("{s:o?,s:s,s:s,s:I,s:b,s:o}", "file",
                  p->choice.file ? json_string(p->choice.file) : json_null(), "revision",
                  p->revision, "commit", p->commit, "when", (json_int_t)time(NULL), "complete",
                  complete || was_complete, "files", files);
    if (!record) return no_memory(p);
    if (old)
        json_object_update(old, record);
    else
        json_array_append(pulls, record);
    json_decref(record);
    return p->status = store_write(pulls, p->folder, p->err);
}

static infer_status wait_for_lock(pull *p, int *lock)
{
    bool told = false;
    p->progress.phase = INFER_PULL_WAIT;
    while (!(p->status = store_lock(lock, p->folder, p->err)) && *lock < 0) {
        if (!told)
            log_line(&p->o->log, INFER_LOG_INFO, "%s: another pull is at work, waiting for it",
                     p->name.repo);
        told = true;
        if (!http_sleep(&p->client, 0.2)) return cancelled(p);
    }
    return p->status;
}

static infer_status run(pull *p)
{
    int lock = -1;
    json_t *pulls = NULL;
    if (ask_commit(p) || ask_tree(p)) return p->status;
    p->folder = arena_printf(&p->mem, "%s/%s", p->o->store, p->name.repo);
    p->snapshot = p->folder ? arena_printf(&p->mem, "%s/%s", p->folder, p->commit) : NULL;
    char *inside = p->snapshot ? arena_printf(&p->mem, "%s/", p->snapshot) : NULL;
    if (!inside) return no_memory(p);
    if ((p->status = store_folders(inside, p->err)) || wait_for_lock(p, &lock)) goto done;
    // The other one may have been a removal.
    if ((p->status = store_folders(inside, p->err))) goto done;
    if ((p->status = store_read(&pulls, p->folder, p->err))) goto done;
    if (plan(p, pulls) || write_record(p, pulls, false) || transfer_all(p)) goto done;
    write_record(p, pulls, true);
done:
    end_transfers(p);
    json_decref(pulls);
    if (lock >= 0) close(lock);
    return p->status;
}

static infer_status check_options(pull *p)
{
    const infer_hub_options *o = p->o;
    const char *end = p->client.endpoint;
    if (!o->store || !*o->store) return FAIL(p, INFER_ARGUMENT, "pull: no store is given");
    if (o->n_connections < 0 || o->n_connections > MAX_CONNECTIONS)
        return FAIL(p, INFER_ARGUMENT, "connections: expected 1 to %d, found %d", MAX_CONNECTIONS,
                    o->n_connections);
    if (o->timeout < 0) return FAIL(p, INFER_ARGUMENT, "timeout: found %d s", o->timeout);
    if (strncmp(end, "http://", 7) && strncmp(end, "https://", 8))
        return FAIL(p, INFER_ARGUMENT, "%s: expected an endpoint that begins with https://", end);
    bool here = !strncmp(end, "http://127.", 11) || !strncmp(end, "http://localhost", 16);
    if (p->client.token && !strncmp(end, "http://", 7) && !here)
        log_line(&o->log, INFER_LOG_WARN, "%s: the token goes there unencrypted", end);
    for (const char *s = o->token; s && *s; s++)
        if (*s <= ' ' || *s > '~' || s - o->token > 1000)
            return FAIL(p, INFER_ARGUMENT,
                        "HF_TOKEN: not a token: it has a space, a control "
                        "character or more than 1000 characters");
    return INFER_OK;
}

infer_status infer_pull(char **path, const char *name, const infer_hub_options *o, infer_error *err)
{
    static const infer_hub_options none;
    infer_error own = { 0 };
    *path = NULL;
    pull *p = mem_zero(1, sizeof *p);
    if (!p) return error_set(err, INFER_NOMEM, "%s: out of memory", name);
    p->o = o ? o : &none;
    p->err = err ? err : &own;
    p->client = (http_client){ .endpoint = p->o->endpoint ? p->o->endpoint : ENDPOINT,
                               .token = p->o->token && *p->o->token ? p->o->token : NULL,
                               .timeout = p->o->timeout ? p->o->timeout : 30,
                               .alive = alive,
                               .user = p,
                               .log = &p->o->log };
    p->n_connections = p->o->n_connections ? p->o->n_connections : 4;
    p->status = hub_name_parse(&p->name, name, &p->mem, p->err);
    p->client.repo = p->name.repo;
    p->revision = p->name.revision ? p->name.revision : "main";
    size_t n = strlen(p->client.endpoint);
    while (n && p->client.endpoint[n - 1] == '/')
        n--;
    char *endpoint = arena_strndup(&p->mem, p->client.endpoint, n);
    if (!endpoint && !p->status) no_memory(p);
    p->client.endpoint = endpoint;
    if (!p->status && !check_options(p)) {
        if (curl_global_init(CURL_GLOBAL_DEFAULT))
            no_memory(p);
        else if (!run(p)) {
            const char *found = p->choice.file
                                    ? arena_printf(&p->mem, "%s/%s", p->snapshot, p->choice.file)
                                    : p->snapshot;
            *path = found ? mem_strdup(found) : NULL;
            if (!*path) no_memory(p);
        }
    }
    infer_status s = p->status;
    hub_tree_free(&p->tree);
    arena_free(&p->mem);
    mem_free(p);
    return s ? s : error_clear(err);
}
