/*
 * jinja_value.c: memory and failure of a run, and Python's values: making, truth, equality, order,
 * hashing, iteration, and the context's JSON as values.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "models/jinja_impl.h"

/* ---- failure and bounds -------------------------------------------------------------------- */

void jinja_fail(jrun *r, infer_status code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->msg, sizeof r->msg, fmt, ap);
    va_end(ap);
    r->code = code;
    longjmp(*r->handler, 1);
}

void jinja_step(jrun *r, uint64_t n)
{
    r->steps += n;
    if (r->steps > r->max_steps)
        jinja_fail(r, INFER_LIMIT, "the template takes more than %llu steps",
                   (unsigned long long)r->max_steps);
}

void jinja_enter(jrun *r)
{
    jinja_step(r, 1);
    if (++r->depth > MAX_DEPTH)
        jinja_fail(r, INFER_LIMIT, "the template nests deeper than %d evaluations", MAX_DEPTH);
}

/* ---- memory -------------------------------------------------------------------------------- */

struct pool_chunk {
    pool_chunk *next, *prev;
    size_t size, n; // bytes after this header, those given out
};
enum { CHUNK = 64 << 10, OWN_CHUNK = 16 << 10, HEAD = (sizeof(pool_chunk) + 15) & ~15 };

static pool_chunk *chunk_new(jrun *r, size_t size)
{
    pool *p = r->mem;
    if (size > p->limit || p->used > p->limit - size)
        jinja_fail(r, INFER_LIMIT, "the template needs more than %zu bytes of memory", p->limit);
    pool_chunk *c = mem_alloc(1, HEAD + size);
    if (!c) jinja_fail(r, INFER_NOMEM, "out of memory");
    *c = (pool_chunk){ .size = size };
    p->used += size;
    return c;
}

static void chunk_link(pool *p, pool_chunk *c, pool_chunk *after)
{
    c->prev = after;
    c->next = after ? after->next : p->chunk;
    if (c->next) c->next->prev = c;
    if (after)
        after->next = c;
    else
        p->chunk = c;
}

/* Text of any size, not zeroed. Large pieces have a chunk of their own, so that text_resize can
 * give the old place back. */
static void *alloc_raw(jrun *r, size_t size)
{
    pool *p = r->mem;
    if (size > OWN_CHUNK) {
        pool_chunk *c = chunk_new(r, size);
        c->n = size;
        chunk_link(p, c, p->chunk); // behind the chunk that small pieces come from
        return (char *)c + HEAD;
    }
    size = (size + 15) & ~(size_t)15;
    if (!p->chunk || p->chunk->size - p->chunk->n < size) {
        // The first chunk is small: most renderings need little.
        chunk_link(p, chunk_new(r, p->chunk ? CHUNK : OWN_CHUNK), NULL);
    }
    void *out = (char *)p->chunk + HEAD + p->chunk->n;
    p->chunk->n += size;
    return out;
}

void *jinja_alloc(jrun *r, size_t n, size_t size)
{
    size_t bytes;
    if (!mem_mul(n, size, &bytes)) jinja_fail(r, INFER_LIMIT, "the template needs too much memory");
    void *out = alloc_raw(r, bytes ? bytes : 1);
    memset(out, 0, bytes);
    return out;
}

/* Grows an array; the old place may be freed, so nobody else may hold it. */
static void *resize(jrun *r, void *old, size_t old_bytes, size_t bytes)
{
    pool *p = r->mem;
    void *out = alloc_raw(r, bytes);
    if (old_bytes) memcpy(out, old, old_bytes);
    if (old_bytes > OWN_CHUNK) {
        pool_chunk *c = (pool_chunk *)((char *)old - HEAD);
        if (c->prev)
            c->prev->next = c->next;
        else
            p->chunk = c->next;
        if (c->next) c->next->prev = c->prev;
        p->used -= c->size;
        mem_free(c);
    }
    return out;
}

void jinja_pool_free(pool *p)
{
    for (pool_chunk *c = p->chunk, *next; c; c = next) {
        next = c->next;
        mem_free(c);
    }
    *p = (pool){ 0 };
}

/* ---- strings ------------------------------------------------------------------------------- */

str *j_str_lit(jrun *r, const char *s)
{
    str *out = jinja_alloc(r, 1, sizeof *out);
    *out = (str){ .s = s, .n = strlen(s), .n_chars = -1 };
    return out;
}

str *j_str_new(jrun *r, const char *s, size_t n)
{
    str *out = jinja_alloc(r, 1, sizeof *out);
    char *copy = alloc_raw(r, n + 1);
    memcpy(copy, s, n);
    copy[n] = 0;
    *out = (str){ .s = copy, .n = n, .n_chars = -1 };
    return out;
}

value j_v_text(jrun *r, const char *s) { return v_str(j_str_lit(r, s)); }

str *j_str_part(jrun *r, const str *s, size_t from, size_t to)
{
    str *out = jinja_alloc(r, 1, sizeof *out);
    *out = *s;
    out->buf = NULL;
    out->s += from;
    out->n = to - from;
    if (s->foreign) out->foreign += from;
    out->n_chars = s->n_chars == (int64_t)s->n ? (int64_t)out->n : -1;
    return out;
}

str *j_str_plain(jrun *r, str *s)
{
    if (!s->markup) return s;
    str *out = jinja_alloc(r, 1, sizeof *out);
    *out = *s;
    out->markup = false;
    return out;
}

int64_t jinja_len(jrun *r, const str *s)
{
    if (s->n_chars >= 0) return s->n_chars;
    jinja_step(r, s->n / 64);
    int64_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        n += ((unsigned char)s->s[i] & 0xc0) != 0x80;
    ((str *)s)->n_chars = n; // a cache; strings of compiled templates have it from the start
    return n;
}

size_t j_char_offset(jrun *r, const str *s, int64_t chars)
{
    if (chars <= 0) return 0;
    if (chars >= jinja_len(r, s)) return s->n;
    if (s->n_chars == (int64_t)s->n) return (size_t)chars;
    size_t i = 0;
    for (int64_t c = 0; i < s->n; i++)
        if (((unsigned char)s->s[i] & 0xc0) != 0x80 && c++ == chars) break;
    jinja_step(r, i / 64);
    return i;
}

int j_str_cmp(const str *a, const str *b)
{
    // Order by UTF-8 bytes is order by code points.
    int c = memcmp(a->s, b->s, a->n < b->n ? a->n : b->n);
    return c ? c : (a->n > b->n) - (a->n < b->n);
}

bool j_str_is(const str *a, const char *b) { return strlen(b) == a->n && !memcmp(a->s, b, a->n); }

/* ---- lists, dicts, others ------------------------------------------------------------------ */

list *j_list_new(jrun *r, size_t cap)
{
    list *l = jinja_alloc(r, 1, sizeof *l);
    if (cap) {
        l->v = jinja_alloc(r, cap, sizeof *l->v);
        l->cap = cap;
    }
    return l;
}

void j_list_add(jrun *r, list *l, value v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 8;
        l->v = resize(r, l->v, l->cap * sizeof *l->v, cap * sizeof *l->v);
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static uint64_t hash(jrun *r, value v)
{
    uint64_t h = r->hash_seed;
    switch (v.type) {
    case V_UNDEFINED:
    case V_NONE: return mix(h, v.type);
    case V_BOOL: return mix(h, v.u.b);
    case V_INT: return mix(h, (uint64_t)v.u.i);
    case V_FLOAT: {
        // An integral float equals its int and must hash alike.
        if (v.u.f >= -0x1p63 && v.u.f < 0x1p63 && v.u.f == floor(v.u.f))
            return mix(h, (uint64_t)(int64_t)v.u.f);
        uint64_t bits;
        memcpy(&bits, &v.u.f, 8);
        return mix(h, bits);
    }
    case V_STR: {
        const char *p = v.u.s->s;
        size_t n = v.u.s->n;
        h = mix(h, n);
        jinja_step(r, n / 64);
        for (; n >= 8; p += 8, n -= 8) {
            uint64_t w;
            memcpy(&w, p, 8);
            h = mix(h, w);
        }
        uint64_t w = 0;
        if (n) memcpy(&w, p, n);
        return mix(h, w);
    }
    case V_TUPLE:
        jinja_enter(r);
        for (size_t i = 0; i < v.u.l->n; i++)
            h = mix(h, hash(r, v.u.l->v[i]));
        jinja_leave(r);
        return h;
    case V_LIST:
    case V_DICT: RAISE(r, "unhashable type: '%s'", j_type_name(v));
    default: return mix(h, (uintptr_t)v.u.l);
    }
}

dict *j_dict_new(jrun *r) { return jinja_alloc(r, 1, sizeof(dict)); }

static dict_entry *dict_entry_find(jrun *r, const dict *d, value key, uint64_t h)
{
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (d->e[i].hash == h && j_equal(r, d->e[i].key, key)) return &d->e[i];
        return NULL;
    }
    for (size_t i = h & (d->n_index - 1); d->index[i]; i = (i + 1) & (d->n_index - 1)) {
        dict_entry *e = &d->e[d->index[i] - 1];
        if (e->hash == h && j_equal(r, e->key, key)) return e;
        jinja_step(r, 1);
    }
    return NULL;
}

static void dict_index(jrun *r, dict *d)
{
    d->n_index = 4 * d->cap;
    d->index = jinja_alloc(r, d->n_index, sizeof *d->index);
    for (size_t e = 0; e < d->n; e++) {
        size_t i = d->e[e].hash & (d->n_index - 1);
        while (d->index[i])
            i = (i + 1) & (d->n_index - 1);
        d->index[i] = (uint32_t)e + 1;
    }
}

void j_dict_set(jrun *r, dict *d, value key, value v)
{
    uint64_t h = hash(r, key);
    dict_entry *e = dict_entry_find(r, d, key, h);
    if (e) {
        e->val = v; // the first key stays, as in Python
        return;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 8;
        d->e = resize(r, d->e, d->cap * sizeof *d->e, cap * sizeof *d->e);
        d->cap = cap;
        if (cap > 8) dict_index(r, d);
    }
    d->e[d->n++] = (dict_entry){ key, v, h };
    if (!d->index) return;
    size_t i = h & (d->n_index - 1);
    while (d->index[i])
        i = (i + 1) & (d->n_index - 1);
    d->index[i] = (uint32_t)d->n;
}

value *j_dict_find(jrun *r, const dict *d, value key)
{
    dict_entry *e = dict_entry_find(r, d, key, hash(r, key));
    return e ? &e->val : NULL;
}

value j_v_iter(jrun *r, list *items, const char *type)
{
    iter *it = jinja_alloc(r, 1, sizeof *it);
    *it = (iter){ .v = items->v, .n = items->n, .type = type };
    return (value){ .type = V_ITER, .u.it = it };
}

value j_v_undefined(jrun *r, str *name)
{
    undefined *u = jinja_alloc(r, 1, sizeof *u);
    u->name = v_str(name);
    return (value){ .type = V_UNDEFINED, .u.u = u };
}

value j_v_undefined_hint(jrun *r, const char *hint)
{
    undefined *u = jinja_alloc(r, 1, sizeof *u);
    u->hint = j_str_new(r, hint, strlen(hint));
    return (value){ .type = V_UNDEFINED, .u.u = u };
}

/* jinja2's name of an object in a message. */
static const char *object_name(jrun *r, value v)
{
    static const char *const jinja_types[] = { [V_NAMESPACE] = "jinja2.utils.Namespace",
                                               [V_MACRO] = "jinja2.runtime.Macro",
                                               [V_LOOP] = "jinja2.runtime.LoopContext",
                                               [V_CYCLER] = "jinja2.utils.Cycler",
                                               [V_JOINER] = "jinja2.utils.Joiner" };
    if (v.type == V_NONE) return "None";
    const char *type = j_type_name(v);
    if ((size_t)v.type < sizeof jinja_types / sizeof *jinja_types && jinja_types[v.type])
        type = jinja_types[v.type];
    if (v.type == V_STR && v.u.s->markup) type = "markupsafe.Markup";
    if (v.type == V_TUPLE && v.u.l->group) type = "jinja2.filters._GroupTuple";
    char *out = jinja_alloc(r, strlen(type) + 8, 1);
    sprintf(out, "%s object", type);
    return out;
}

value j_v_undefined_item(jrun *r, value of, value name)
{
    undefined *u = jinja_alloc(r, 1, sizeof *u);
    u->of = object_name(r, of);
    u->name = name;
    return (value){ .type = V_UNDEFINED, .u.u = u };
}

void j_fail_undefined(jrun *r, value v)
{
    const undefined *u = v.u.u;
    if (u->hint) RAISE(r, "%s", u->hint->s);
    const char *name = j_repr(r, u->name)->s;
    if (!u->of) RAISE(r, "%s is undefined", name);
    if (u->name.type != V_STR) RAISE(r, "%s has no element %s", u->of, name);
    RAISE(r, "'%s' has no attribute %s", u->of, name);
}

/* ---- the context --------------------------------------------------------------------------- */

typedef struct from_json {
    jrun *r;
    int depth;
    const char *key;
} from_json;

static value foreign_text(from_json *f, const char *s, size_t n, bool trusted)
{
    str *out = jinja_alloc(f->r, 1, sizeof *out);
    // jansson's strings are UTF-8 already, and the context outlives the rendering.
    *out = (str){ .s = s, .n = n, .n_chars = -1, .all_foreign = !trusted };
    return v_str(out);
}

static value convert(from_json *f, json_t *j)
{
    jrun *r = f->r;
    jinja_step(r, 1);
    switch (json_typeof(j)) {
    case JSON_NULL: return v_none();
    case JSON_TRUE: return v_bool(true);
    case JSON_FALSE: return v_bool(false);
    case JSON_INTEGER: return v_int(json_integer_value(j));
    case JSON_REAL: return v_float(json_real_value(j));
    case JSON_STRING: {
        const jinja_options *o = r->options;
        const char *s = json_string_value(j);
        size_t n = json_string_length(j);
        bool trusted = o->trusted && f->key && o->trusted(f->depth - 1, f->key, s, n, o->user);
        return foreign_text(f, s, n, trusted);
    }
    case JSON_ARRAY: {
        jinja_enter(r);
        list *l = j_list_new(r, json_array_size(j));
        f->depth++;
        for (size_t i = 0; i < json_array_size(j); i++)
            j_list_add(r, l, convert(f, json_array_get(j, i)));
        f->depth--;
        jinja_leave(r);
        return v_list(l);
    }
    case JSON_OBJECT: {
        jinja_enter(r);
        dict *d = j_dict_new(r);
        const char *outer = f->key;
        f->depth++;
        for (void *i = json_object_iter(j); i; i = json_object_iter_next(j, i)) {
            f->key = json_object_iter_key(i);
            value key = foreign_text(f, f->key, strlen(f->key), false);
            j_dict_set(r, d, key, convert(f, json_object_iter_value(i)));
        }
        f->depth--;
        f->key = outer;
        jinja_leave(r);
        return v_dict(d);
    }
    }
    return v_none();
}

value jinja_from_json(jrun *r, json_t *j)
{
    from_json f = { .r = r };
    return convert(&f, j);
}

/* ---- asking -------------------------------------------------------------------------------- */

const char *j_type_name(value v)
{
    static const char *const names[] = { "missing",
                                         "Undefined",
                                         "NoneType",
                                         "bool",
                                         "int",
                                         "float",
                                         "str",
                                         "list",
                                         "tuple",
                                         "dict",
                                         "range",
                                         "",
                                         "",
                                         "Namespace",
                                         "builtin_function_or_method",
                                         "builtin_function_or_method",
                                         "Macro",
                                         "LoopContext",
                                         "Cycler",
                                         "Joiner",
                                         "slice" };
    static const char *const views[] = { "dict_keys", "dict_values", "dict_items" };
    if (v.type == V_VIEW) return views[v.u.w->kind];
    if (v.type == V_ITER) return v.u.it->type;
    if (v.type == V_STR && v.u.s->markup) return "Markup";
    if (v.type == V_TUPLE && v.u.l->group) return "_GroupTuple";
    return names[v.type];
}

bool j_is_number(value v) { return v.type >= V_BOOL && v.type <= V_FLOAT; }

double j_as_double(value v)
{
    return v.type == V_FLOAT ? v.u.f : v.type == V_INT ? (double)v.u.i : v.u.b;
}

int64_t j_need_int(jrun *r, value v)
{
    if (v.type == V_INT) return v.u.i;
    if (v.type == V_BOOL) return v.u.b;
    if (v.type == V_UNDEFINED) {
        // Python asks for __index__, which Undefined lacks.
        RAISE(r, "'Undefined' object cannot be interpreted as an integer");
    }
    RAISE(r, "'%s' object cannot be interpreted as an integer", j_type_name(v));
}

bool j_truth(jrun *r, value v)
{
    switch (v.type) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE: return false;
    case V_BOOL: return v.u.b;
    case V_INT: return v.u.i != 0;
    case V_FLOAT: return v.u.f != 0;
    case V_STR: return v.u.s->n != 0;
    case V_LIST:
    case V_TUPLE: return v.u.l->n != 0;
    case V_DICT: return v.u.d->n != 0;
    case V_RANGE: return v.u.r->n != 0;
    case V_VIEW: return v.u.w->d->n != 0;
    case V_LOOP: return j_loop_length(r, v.u.loop) != 0;
    default: return true;
    }
}

/* -1, 0, 1; 2 for NaN. Exact where an int64 has no double. */
static int number_cmp(value a, value b)
{
    if (a.type != V_FLOAT && b.type != V_FLOAT) {
        int64_t x = a.type == V_BOOL ? a.u.b : a.u.i, y = b.type == V_BOOL ? b.u.b : b.u.i;
        return (x > y) - (x < y);
    }
    if (a.type == V_FLOAT && b.type == V_FLOAT) {
        if (isnan(a.u.f) || isnan(b.u.f)) return 2;
        return (a.u.f > b.u.f) - (a.u.f < b.u.f);
    }
    if (a.type == V_FLOAT) {
        int c = number_cmp(b, a);
        return c == 2 ? 2 : -c;
    }
    int64_t x = a.type == V_BOOL ? a.u.b : a.u.i;
    double f = b.u.f;
    if (isnan(f)) return 2;
    if (f >= 0x1p63) return -1;
    if (f < -0x1p63) return 1;
    int64_t y = (int64_t)f; // toward zero
    if (x != y) return x > y ? 1 : -1;
    double rest = f - (double)y;
    return (rest < 0) - (rest > 0);
}

bool j_equal(jrun *r, value a, value b)
{
    jinja_step(r, 1);
    if (j_is_number(a) && j_is_number(b)) return number_cmp(a, b) == 0;
    if (a.type != b.type) return false;
    switch (a.type) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE: return true;
    case V_STR:
        jinja_step(r, a.u.s->n / 256);
        return a.u.s->n == b.u.s->n && !memcmp(a.u.s->s, b.u.s->s, a.u.s->n);
    case V_LIST:
    case V_TUPLE: {
        if (a.u.l == b.u.l) return true;
        if (a.u.l->n != b.u.l->n) return false;
        jinja_enter(r);
        bool same = true;
        for (size_t i = 0; i < a.u.l->n && same; i++)
            same = j_equal(r, a.u.l->v[i], b.u.l->v[i]);
        jinja_leave(r);
        return same;
    }
    case V_DICT: {
        if (a.u.d == b.u.d) return true;
        if (a.u.d->n != b.u.d->n) return false;
        jinja_enter(r);
        bool same = true;
        for (size_t i = 0; i < a.u.d->n && same; i++) {
            value *other = j_dict_find(r, b.u.d, a.u.d->e[i].key);
            same = other && j_equal(r, a.u.d->e[i].val, *other);
        }
        jinja_leave(r);
        return same;
    }
    case V_RANGE: {
        const range *x = a.u.r, *y = b.u.r;
        return x->n == y->n &&
               (!x->n || (x->start == y->start && (x->n == 1 || x->step == y->step)));
    }
    case V_FUNCTION: return a.u.fn == b.u.fn;
    default: return a.u.l == b.u.l;
    }
}

int j_compare(jrun *r, value a, value b, op o)
{
    static const char *const signs[] = {
        [OP_LT] = "<", [OP_LE] = "<=", [OP_GT] = ">", [OP_GE] = ">="
    };
    jinja_step(r, 1);
    int c;
    if (a.type == V_UNDEFINED) j_fail_undefined(r, a);
    if (b.type == V_UNDEFINED) j_fail_undefined(r, b);
    if (j_is_number(a) && j_is_number(b)) {
        c = number_cmp(a, b);
        if (c == 2) return false;
    } else if (a.type == V_STR && b.type == V_STR) {
        jinja_step(r, a.u.s->n / 256);
        c = j_str_cmp(a.u.s, b.u.s);
    } else if (a.type == b.type && (a.type == V_LIST || a.type == V_TUPLE)) {
        const list *x = a.u.l, *y = b.u.l;
        size_t i = 0;
        jinja_enter(r);
        while (i < x->n && i < y->n && j_equal(r, x->v[i], y->v[i]))
            i++;
        int out;
        if (i < x->n && i < y->n)
            out = j_compare(r, x->v[i], y->v[i], o);
        else
            out = o == OP_LT   ? x->n < y->n
                  : o == OP_LE ? x->n <= y->n
                  : o == OP_GT ? x->n > y->n
                               : x->n >= y->n;
        jinja_leave(r);
        return out;
    } else {
        RAISE(r, "'%s' not supported between instances of '%s' and '%s'", signs[o], j_type_name(a),
              j_type_name(b));
    }
    return o == OP_LT ? c < 0 : o == OP_LE ? c <= 0 : o == OP_GT ? c > 0 : c >= 0;
}

bool j_contains(jrun *r, value in, value item)
{
    switch (in.type) {
    case V_STR:
        if (item.type != V_STR)
            RAISE(r, "'in <string>' requires string as left operand, not %s", j_type_name(item));
        jinja_step(r, in.u.s->n / 64);
        return j_str_find(in.u.s, item.u.s, 0, in.u.s->n) >= 0;
    case V_DICT: return j_dict_find(r, in.u.d, item) != NULL;
    case V_VIEW:
        if (in.u.w->kind == VIEW_KEYS) return j_dict_find(r, in.u.w->d, item) != NULL;
        break;
    default: break;
    }
    if (!j_is_iterable(in)) RAISE(r, "argument of type '%s' is not iterable", j_type_name(in));
    cursor c = j_iterate(r, in);
    for (value v; j_cursor_next(r, &c, &v);)
        if (j_equal(r, v, item)) return true;
    return false;
}

int64_t j_length(jrun *r, value v)
{
    switch (v.type) {
    case V_UNDEFINED: return 0;
    case V_STR: return jinja_len(r, v.u.s);
    case V_LIST:
    case V_TUPLE: return (int64_t)v.u.l->n;
    case V_DICT: return (int64_t)v.u.d->n;
    case V_RANGE: return v.u.r->n;
    case V_VIEW: return (int64_t)v.u.w->d->n;
    case V_LOOP: return j_loop_length(r, v.u.loop);
    default: RAISE(r, "object of type '%s' has no len()", j_type_name(v));
    }
}

/* ---- iteration ----------------------------------------------------------------------------- */

bool j_is_iterable(value v)
{
    return v.type == V_UNDEFINED || (v.type >= V_STR && v.type <= V_ITER);
}

cursor j_iterate(jrun *r, value v)
{
    if (!j_is_iterable(v)) RAISE(r, "'%s' object is not iterable", j_type_name(v));
    return (cursor){ .of = v };
}

static value pair(jrun *r, value a, value b)
{
    list *l = j_list_new(r, 2);
    j_list_add(r, l, a);
    j_list_add(r, l, b);
    return v_tuple(l);
}

static bool dict_next(jrun *r, const dict *d, int kind, size_t i, value *out)
{
    if (i >= d->n) return false;
    const dict_entry *e = &d->e[i];
    *out = kind == VIEW_KEYS ? e->key : kind == VIEW_VALUES ? e->val : pair(r, e->key, e->val);
    return true;
}

bool j_cursor_next(jrun *r, cursor *c, value *out)
{
    jinja_step(r, 1);
    value v = c->of;
    switch (v.type) {
    case V_STR: {
        if (c->pos >= v.u.s->n) return false;
        uint32_t cp;
        size_t n = j_next_char(v.u.s->s + c->pos, v.u.s->n - c->pos, &cp);
        str *one = j_str_part(r, v.u.s, c->pos, c->pos + n);
        one->markup = false;
        *out = v_str(one);
        c->pos += n;
        return true;
    }
    case V_LIST:
    case V_TUPLE:
        if (c->pos >= v.u.l->n) return false;
        *out = v.u.l->v[c->pos++];
        return true;
    case V_DICT: return dict_next(r, v.u.d, VIEW_KEYS, c->pos++, out);
    case V_VIEW: return dict_next(r, v.u.w->d, v.u.w->kind, c->pos++, out);
    case V_RANGE:
        if ((int64_t)c->pos >= v.u.r->n) return false;
        *out = v_int(v.u.r->start + (int64_t)c->pos++ * v.u.r->step);
        return true;
    case V_ITER: {
        iter *it = v.u.it;
        if (it->pos < it->n) {
            *out = it->v[it->pos++];
            return true;
        }
        if (it->failure) jinja_fail(r, it->failure_code, "%s", it->failure);
        return false;
    }
    default: return false;
    }
}

list *j_to_list(jrun *r, value v)
{
    list *l = j_list_new(r, 0);
    cursor c = j_iterate(r, v);
    for (value item; j_cursor_next(r, &c, &item);)
        j_list_add(r, l, item);
    return l;
}
