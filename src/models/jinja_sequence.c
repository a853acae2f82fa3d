/*
 * jinja_sequence.c: the filters on sequences and mappings. Those that are generators in jinja2 give
 * an iterator here too: it is true, has no length, and is consumed once.
 */
#include <stdio.h>
#include <string.h>

#include "models/jinja_impl.h"

#define FILTER(name) static value name(jrun *r, value *a, const args *c)
#define UNUSED                                                                                     \
    (void)r;                                                                                       \
    (void)a;                                                                                       \
    (void)c

/* ---- attribute paths ----------------------------------------------------------------------- */

/* "a.b.0" as the subscripts 'a', 'b', 0. */
static list *path(jrun *r, value attribute)
{
    list *parts = j_list_new(r, 0);
    if (!v_given(attribute) || attribute.type == V_NONE) return parts;
    if (attribute.type != V_STR) {
        j_list_add(r, parts, attribute);
        return parts;
    }
    str *s = attribute.u.s;
    size_t from = 0;
    for (size_t i = 0; i <= s->n; i++) {
        if (i < s->n && s->s[i] != '.') continue;
        str *part = j_str_part(r, s, from, i);
        bool digits = part->n > 0;
        int64_t index = 0;
        for (size_t k = 0; k < part->n; k++)
            digits &= part->s[k] >= '0' && part->s[k] <= '9';
        j_list_add(r, parts,
                   digits && j_parse_int(r, part, 10, &index) ? v_int(index) : v_str(part));
        from = i + 1;
    }
    return parts;
}

static value follow(jrun *r, const list *parts, value v, value absent)
{
    for (size_t i = 0; i < parts->n; i++) {
        v = j_get_item(r, v, parts->v[i]);
        if (v_given(absent) && absent.type != V_NONE && v.type == V_UNDEFINED) v = absent;
    }
    return v;
}

static value ignore_case(jrun *r, value v)
{
    if (v.type != V_STR) return v;
    return v_str(j_str_case(r, v.u.s, 'l'));
}

static bool flag(jrun *r, value v) { return v_given(v) && j_truth(r, v); }

/* ---- sorting ------------------------------------------------------------------------------- */

typedef struct keyed {
    value key, v;
} keyed;

static bool less(jrun *r, const keyed *a, const keyed *b)
{
    return j_compare(r, a->key, b->key, OP_LT);
}

static void turn(keyed *x, size_t n)
{
    for (size_t i = 0; i + i + 1 < n; i++) {
        keyed t = x[i];
        x[i] = x[n - 1 - i];
        x[n - 1 - i] = t;
    }
}

/* Binary insertion behind the first run: the comparisons of Python's sort for short lists, so that
 * of several pairs without an order the same one is named. */
static void sort_short(jrun *r, keyed *x, size_t n)
{
    size_t run = n < 2 ? n : 2;
    if (n >= 2 && less(r, &x[1], &x[0])) {
        while (run < n && less(r, &x[run], &x[run - 1]))
            run++;
        turn(x, run);
    } else {
        while (run < n && !less(r, &x[run], &x[run - 1]))
            run++;
    }
    for (; run < n; run++) {
        keyed pivot = x[run];
        size_t low = 0, high = run;
        while (low < high) {
            size_t mid = low + (high - low) / 2;
            if (less(r, &pivot, &x[mid]))
                high = mid;
            else
                low = mid + 1;
        }
        memmove(x + low + 1, x + low, (run - low) * sizeof *x);
        x[low] = pivot;
    }
}

static void merge_sort(jrun *r, keyed *x, size_t n)
{
    keyed *from = x, *to = jinja_alloc(r, n, sizeof *to);
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t i = 0; i < n; i += 2 * width) {
            size_t mid = i + width < n ? i + width : n, end = i + 2 * width < n ? i + 2 * width : n;
            for (size_t p = i, q = mid, o = i; o < end; o++)
                to[o] =
                    p == mid || (q < end && less(r, &from[q], &from[p])) ? from[q++] : from[p++];
        }
        keyed *swap = from;
        from = to;
        to = swap;
    }
    if (from != x) memcpy(x, from, n * sizeof *x);
}

/* Stable; equal items keep their order in a descending sort too, as Python's sorted does. */
static void sort_keyed(jrun *r, keyed *x, size_t n, bool descending)
{
    if (descending) turn(x, n);
    if (n <= 64)
        sort_short(r, x, n);
    else
        merge_sort(r, x, n);
    if (descending) turn(x, n);
}

static keyed *with_keys(jrun *r, value of, size_t *n)
{
    list *l = j_to_list(r, of);
    keyed *x = jinja_alloc(r, l->n, sizeof *x);
    for (size_t i = 0; i < l->n; i++)
        x[i].v = l->v[i];
    *n = l->n;
    return x;
}

static value sorted_values(jrun *r, const keyed *x, size_t n)
{
    list *out = j_list_new(r, n);
    for (size_t i = 0; i < n; i++)
        j_list_add(r, out, x[i].v);
    return v_list(out);
}

FILTER(f_sort)
{
    UNUSED;
    bool exact = flag(r, a[2]);
    list *paths = j_list_new(r, 0);
    if (v_given(a[3]) && a[3].type == V_STR) {
        value arg[3] = { a[3], j_v_text(r, ",") };
        list *names = j_find_method(a[3], j_str_lit(r, "split"))->fn(r, arg, NULL).u.l;
        for (size_t i = 0; i < names->n; i++)
            j_list_add(r, paths, v_list(path(r, names->v[i])));
    } else {
        j_list_add(r, paths, v_list(path(r, a[3])));
    }
    size_t n;
    keyed *x = with_keys(r, a[0], &n);
    for (size_t i = 0; i < n; i++) {
        list *key = j_list_new(r, paths->n);
        for (size_t k = 0; k < paths->n; k++) {
            value v = follow(r, paths->v[k].u.l, x[i].v, (value){ 0 });
            j_list_add(r, key, exact ? v : ignore_case(r, v));
        }
        x[i].key = v_list(key);
    }
    sort_keyed(r, x, n, flag(r, a[1]));
    return sorted_values(r, x, n);
}

FILTER(f_dictsort)
{
    UNUSED;
    value by = v_given(a[2]) ? a[2] : j_v_text(r, "key");
    bool key = by.type == V_STR && j_str_is(by.u.s, "key");
    if (!key && !(by.type == V_STR && j_str_is(by.u.s, "value")))
        RAISE(r, "You can only sort by either \"key\" or \"value\"");
    if (a[0].type == V_UNDEFINED) j_fail_undefined(r, a[0]);
    if (a[0].type == V_NAMESPACE) RAISE(r, "items");
    if (a[0].type == V_NAMESPACE) RAISE(r, "items");
    if (a[0].type != V_DICT) RAISE(r, "'%s' object has no attribute 'items'", j_type_name(a[0]));
    view items = { a[0].u.d, VIEW_ITEMS };
    size_t n;
    keyed *x = with_keys(r, (value){ .type = V_VIEW, .u.w = &items }, &n);
    for (size_t i = 0; i < n; i++) {
        value v = x[i].v.u.l->v[key ? 0 : 1];
        x[i].key = flag(r, a[1]) ? v : ignore_case(r, v);
    }
    sort_keyed(r, x, n, flag(r, a[3]));
    return sorted_values(r, x, n);
}

FILTER(f_groupby)
{
    UNUSED;
    const list *parts = path(r, a[1]);
    bool exact = flag(r, a[3]);
    size_t n;
    keyed *x = with_keys(r, a[0], &n);
    for (size_t i = 0; i < n; i++) {
        value v = follow(r, parts, x[i].v, a[2]);
        x[i].key = exact ? v : ignore_case(r, v);
    }
    sort_keyed(r, x, n, false);
    list *out = j_list_new(r, 0);
    for (size_t i = 0; i < n;) {
        list *group = j_list_new(r, 2), *members = j_list_new(r, 0);
        size_t first = i;
        while (i < n && j_equal(r, x[i].key, x[first].key))
            j_list_add(r, members, x[i++].v);
        j_list_add(r, group, exact ? x[first].key : follow(r, parts, x[first].v, a[2]));
        j_list_add(r, group, v_list(members));
        group->group = true;
        j_list_add(r, out, v_tuple(group));
    }
    return v_list(out);
}

static value extreme(jrun *r, value *a, bool largest)
{
    const list *parts = path(r, a[2]);
    bool exact = flag(r, a[1]);
    cursor it = j_iterate(r, a[0]);
    value best = { 0 }, best_key = { 0 };
    for (value v; j_cursor_next(r, &it, &v);) {
        value key = follow(r, parts, v, (value){ 0 });
        if (!exact) key = ignore_case(r, key);
        if (v_given(best) && !j_compare(r, key, best_key, largest ? OP_GT : OP_LT)) continue;
        best = v;
        best_key = key;
    }
    return v_given(best) ? best : j_v_undefined_hint(r, "No aggregated item, sequence was empty.");
}

FILTER(f_min)
{
    UNUSED;
    return extreme(r, a, false);
}
FILTER(f_max)
{
    UNUSED;
    return extreme(r, a, true);
}

/* ---- generators ---------------------------------------------------------------------------- */

typedef void fill_fn(jrun *r, list *out, value *a, const args *c);

/* Runs fill now, and keeps what it raises for the consumer who gets that far. */
static value generator(jrun *r, fill_fn *fill, value *a, const args *c)
{
    list *items = j_list_new(r, 0);
    jmp_buf here, *outer = r->handler;
    int depth = r->depth, line = r->line;
    builder *out = r->out;
    volatile bool failed = false;
    r->handler = &here;
    if (setjmp(here))
        failed = true;
    else
        fill(r, items, a, c);
    r->handler = outer;
    value v = j_v_iter(r, items, "generator");
    if (!failed) return v;
    if (r->code != INFER_ARGUMENT) longjmp(*outer, 1); // bounds end the rendering at once
    r->depth = depth;
    r->line = line;
    r->out = out;
    v.u.it->failure = j_str_new(r, r->msg, strlen(r->msg))->s;
    v.u.it->failure_code = r->code;
    return v;
}

static void fill_map(jrun *r, list *out, value *a, const args *c)
{
    (void)a;
    if (!j_truth(r, c->v[0])) return;
    value attribute = { 0 }, absent = { 0 };
    const builtin *fn = NULL;
    if (c->n == 1 && c->n_kw) {
        for (int i = 0; i < c->n_kw; i++) {
            if (j_str_is(c->kw[i].name, "attribute"))
                attribute = c->kw[i].v;
            else if (j_str_is(c->kw[i].name, "default"))
                absent = c->kw[i].v;
            else
                RAISE(r, "Unexpected keyword argument '%.*s'", (int)c->kw[i].name->n,
                      c->kw[i].name->s);
        }
        if (!v_given(attribute)) RAISE(r, "map requires a filter argument");
    } else if (c->n < 2) {
        RAISE(r, "map requires a filter argument");
    }
    cursor it = j_iterate(r, c->v[0]);
    const list *parts = path(r, attribute);
    for (value v; j_cursor_next(r, &it, &v);) {
        if (v_given(attribute)) {
            j_list_add(r, out, follow(r, parts, v, absent));
            continue;
        }
        if (!fn) {
            if (c->v[1].type == V_STR) fn = j_find_filter(c->v[1].u.s);
            if (!fn) RAISE(r, "No filter named %s.", j_repr(r, c->v[1])->s);
        }
        args call = { .n = c->n - 1, .kw = c->kw, .n_kw = c->n_kw };
        call.v = jinja_alloc(r, (size_t)call.n, sizeof *call.v);
        memcpy(call.v, c->v + 1, (size_t)call.n * sizeof *call.v);
        call.v[0] = v;
        j_list_add(r, out, j_call_builtin(r, fn, "do_", &call));
    }
}

FILTER(f_map)
{
    UNUSED;
    return generator(r, fill_map, a, c);
}

/* select, reject and their attr forms. */
static void choose(jrun *r, list *out, const args *c, bool keep, bool attr)
{
    if (!j_truth(r, c->v[0])) return;
    int off = attr ? 2 : 1;
    if (attr && c->n < 2) RAISE(r, "Missing parameter for attribute name");
    const list *parts = attr ? path(r, c->v[1]) : j_list_new(r, 0);
    const builtin *fn = NULL;
    cursor it = j_iterate(r, c->v[0]);
    for (value v; j_cursor_next(r, &it, &v);) {
        value x = follow(r, parts, v, (value){ 0 });
        bool yes;
        if (c->n <= off) {
            yes = j_truth(r, x);
        } else {
            if (!fn && c->v[off].type == V_STR) fn = j_find_test(c->v[off].u.s);
            if (!fn) RAISE(r, "No test named %s.", j_repr(r, c->v[off])->s);
            args call = { .n = c->n - off, .kw = c->kw, .n_kw = c->n_kw };
            call.v = jinja_alloc(r, (size_t)call.n, sizeof *call.v);
            memcpy(call.v, c->v + off, (size_t)call.n * sizeof *call.v);
            call.v[0] = x;
            yes = j_truth(r, j_call_builtin(r, fn, "test_", &call));
        }
        if (yes == keep) j_list_add(r, out, v);
    }
}

static void fill_select(jrun *r, list *o, value *a, const args *c)
{
    (void)a;
    choose(r, o, c, true, false);
}
static void fill_reject(jrun *r, list *o, value *a, const args *c)
{
    (void)a;
    choose(r, o, c, false, false);
}
static void fill_selectattr(jrun *r, list *o, value *a, const args *c)
{
    (void)a;
    choose(r, o, c, true, true);
}
static void fill_rejectattr(jrun *r, list *o, value *a, const args *c)
{
    (void)a;
    choose(r, o, c, false, true);
}

FILTER(f_select)
{
    UNUSED;
    return generator(r, fill_select, a, c);
}
FILTER(f_reject)
{
    UNUSED;
    return generator(r, fill_reject, a, c);
}
FILTER(f_selectattr)
{
    UNUSED;
    return generator(r, fill_selectattr, a, c);
}
FILTER(f_rejectattr)
{
    UNUSED;
    return generator(r, fill_rejectattr, a, c);
}

static void fill_unique(jrun *r, list *out, value *a, const args *c)
{
    (void)c;
    const list *parts = path(r, a[2]);
    bool exact = flag(r, a[1]);
    dict *seen = j_dict_new(r);
    cursor it = j_iterate(r, a[0]);
    for (value v; j_cursor_next(r, &it, &v);) {
        value key = follow(r, parts, v, (value){ 0 });
        if (!exact) key = ignore_case(r, key);
        if (j_dict_find(r, seen, key)) continue;
        j_dict_set(r, seen, key, v_none());
        j_list_add(r, out, v);
    }
}

FILTER(f_unique)
{
    UNUSED;
    return generator(r, fill_unique, a, c);
}

static void fill_batch(jrun *r, list *out, value *a, const args *c)
{
    (void)c;
    list *now = j_list_new(r, 0);
    cursor it = j_iterate(r, a[0]);
    for (value v; j_cursor_next(r, &it, &v);) {
        if (j_equal(r, v_int((int64_t)now->n), a[1])) {
            j_list_add(r, out, v_list(now));
            now = j_list_new(r, 0);
        }
        j_list_add(r, now, v);
    }
    if (!now->n) return;
    if (v_given(a[2]) && a[2].type != V_NONE) {
        int64_t want = j_need_int(r, a[1]);
        while ((int64_t)now->n < want) {
            jinja_step(r, 1);
            j_list_add(r, now, a[2]);
        }
    }
    j_list_add(r, out, v_list(now));
}

static void fill_slice(jrun *r, list *out, value *a, const args *c)
{
    (void)c;
    const list *l = j_to_list(r, a[0]);
    int64_t slices = j_need_int(r, a[1]), n = (int64_t)l->n;
    if (!slices) RAISE(r, "integer division or modulo by zero");
    int64_t each = slices > 0 ? n / slices : 0, extra = slices > 0 ? n % slices : 0, at = 0;
    for (int64_t i = 0; i < slices; i++) {
        list *part = j_list_new(r, 0);
        jinja_step(r, 1);
        int64_t end = at + each + (i < extra);
        for (; at < end; at++)
            j_list_add(r, part, l->v[at]);
        if (v_given(a[2]) && a[2].type != V_NONE && i >= extra) j_list_add(r, part, a[2]);
        j_list_add(r, out, v_list(part));
    }
}

FILTER(f_batch)
{
    UNUSED;
    return generator(r, fill_batch, a, c);
}
FILTER(f_slice)
{
    UNUSED;
    return generator(r, fill_slice, a, c);
}

static void fill_items(jrun *r, list *out, value *a, const args *c)
{
    (void)c;
    if (a[0].type == V_UNDEFINED) return;
    if (a[0].type != V_DICT) RAISE(r, "Can only get item pairs from a mapping.");
    view items = { a[0].u.d, VIEW_ITEMS };
    cursor it = j_iterate(r, (value){ .type = V_VIEW, .u.w = &items });
    for (value v; j_cursor_next(r, &it, &v);)
        j_list_add(r, out, v);
}

FILTER(f_items)
{
    UNUSED;
    return generator(r, fill_items, a, c);
}

/* ---- the rest ------------------------------------------------------------------------------ */

FILTER(f_list)
{
    UNUSED;
    return v_list(j_to_list(r, a[0]));
}

FILTER(f_first)
{
    UNUSED;
    cursor it = j_iterate(r, a[0]);
    value v;
    return j_cursor_next(r, &it, &v) ? v
                                     : j_v_undefined_hint(r, "No first item, sequence was empty.");
}

static bool is_reversible(value v)
{
    return v.type == V_STR || v.type == V_UNDEFINED || v.type == V_LIST || v.type == V_TUPLE ||
           v.type == V_DICT || v.type == V_RANGE || v.type == V_VIEW;
}

FILTER(f_last)
{
    UNUSED;
    if (!is_reversible(a[0])) RAISE(r, "'%s' object is not reversible", j_type_name(a[0]));
    if (!j_length(r, a[0])) return j_v_undefined_hint(r, "No last item, sequence was empty.");
    if (a[0].type == V_LIST || a[0].type == V_TUPLE) return a[0].u.l->v[a[0].u.l->n - 1];
    const list *l = j_to_list(r, a[0]);
    return l->v[l->n - 1];
}

static list *reversed(jrun *r, value v)
{
    const list *l = j_to_list(r, v);
    list *out = j_list_new(r, l->n);
    for (size_t i = l->n; i-- > 0;)
        j_list_add(r, out, l->v[i]);
    return out;
}

FILTER(f_reverse)
{
    UNUSED;
    static const char *const types[] = {
        [V_UNDEFINED] = "reversed",   [V_LIST] = "list_reverseiterator",
        [V_TUPLE] = "reversed",       [V_DICT] = "dict_reversekeyiterator",
        [V_RANGE] = "range_iterator", [V_VIEW] = "reversed"
    };
    if (a[0].type == V_STR) {
        value v = j_get_slice(r, a[0], (value){ 0 }, (value){ 0 }, v_int(-1));
        return v;
    }
    if (!j_is_iterable(a[0])) RAISE(r, "argument must be iterable");
    list *l = reversed(r, a[0]);
    if (!is_reversible(a[0])) return v_list(l);
    return j_v_iter(r, l, types[a[0].type]);
}

FILTER(f_join)
{
    UNUSED;
    const list *parts = path(r, a[2]);
    str *sep = v_given(a[1]) ? j_str_plain(r, j_to_str(r, a[1])) : j_str_lit(r, "");
    builder b;
    j_sb_init(&b, r);
    cursor it = j_iterate(r, a[0]);
    value v;
    for (bool first = true; j_cursor_next(r, &it, &v); first = false) {
        if (!first) j_sb_str(&b, sep);
        j_sb_value(&b, follow(r, parts, v, (value){ 0 }));
    }
    return v_str(j_sb_done(&b));
}

FILTER(f_sum)
{
    UNUSED;
    const list *parts = path(r, a[1]);
    value total = v_given(a[2]) ? a[2] : v_int(0);
    if (total.type == V_STR) RAISE(r, "sum() can't sum strings [use ''.join(seq) instead]");
    cursor it = j_iterate(r, a[0]);
    for (value v; j_cursor_next(r, &it, &v);)
        total = j_binary(r, OP_ADD, total, follow(r, parts, v, (value){ 0 }));
    return total;
}

const builtin j_sequence_filters[] = {
    { "batch", f_batch, "value linecount ?fill_with" },
    { "dictsort", f_dictsort, "value ?case_sensitive ?by ?reverse" },
    { "first", f_first, "seq" },
    { "groupby", f_groupby, "value attribute ?default ?case_sensitive" },
    { "items", f_items, "value" },
    { "join", f_join, "value ?d ?attribute" },
    { "last", f_last, "seq" },
    { "list", f_list, "value" },
    { "map", f_map, "*" },
    { "max", f_max, "value ?case_sensitive ?attribute" },
    { "min", f_min, "value ?case_sensitive ?attribute" },
    { "reject", f_reject, "*" },
    { "rejectattr", f_rejectattr, "*" },
    { "reverse", f_reverse, "value" },
    { "select", f_select, "*" },
    { "selectattr", f_selectattr, "*" },
    { "slice", f_slice, "value slices ?fill_with" },
    { "sort", f_sort, "value ?reverse ?case_sensitive ?attribute" },
    { "sum", f_sum, "iterable ?attribute ?start" },
    { "unique", f_unique, "value ?case_sensitive ?attribute" },
    { NULL, NULL, NULL },
};
