/*
 * jinja_globals.c: the functions that every template can call.
 */
#include <string.h>

#include "models/jinja_impl.h"

static value g_range(jrun *r, value *a, const args *c)
{
    (void)c;
    range *x = jinja_alloc(r, 1, sizeof *x);
    *x = (range){ 0, j_need_int(r, a[0]), 1, 0 };
    if (v_given(a[1])) {
        x->start = x->stop;
        x->stop = j_need_int(r, a[1]);
    }
    if (v_given(a[2])) x->step = j_need_int(r, a[2]);
    if (!x->step) RAISE(r, "range() arg 3 must not be zero");
    bool up = x->step > 0;
    if (up ? x->start < x->stop : x->start > x->stop) {
        // Unsigned, where neither the difference nor -step overflows.
        uint64_t span =
            up ? (uint64_t)x->stop - (uint64_t)x->start : (uint64_t)x->start - (uint64_t)x->stop;
        uint64_t step = up ? (uint64_t)x->step : 0 - (uint64_t)x->step, n = (span - 1) / step + 1;
        if (n > MAX_RANGE)
            RAISE(r, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                  (int)MAX_RANGE);
        x->n = (int64_t)n;
    }
    return (value){ .type = V_RANGE, .u.r = x };
}

/* Python's dict(): a mapping or pairs, then keywords. */
static dict *make_dict(jrun *r, const args *c, const char *name)
{
    dict *d = j_dict_new(r);
    if (c->n > 1) RAISE(r, "%s expected at most 1 argument, got %d", name, c->n);
    if (c->n == 1 && c->v[0].type == V_DICT) {
        const dict *from = c->v[0].u.d;
        for (size_t i = 0; i < from->n; i++) {
            jinja_step(r, 1);
            j_dict_set(r, d, from->e[i].key, from->e[i].val);
        }
    } else if (c->n == 1) {
        cursor it = j_iterate(r, c->v[0]);
        int64_t i = 0;
        for (value v; j_cursor_next(r, &it, &v); i++) {
            if (!j_is_iterable(v))
                RAISE(r, "cannot convert dictionary update sequence element #%lld to a sequence",
                      (long long)i);
            list *pair = j_to_list(r, v);
            if (pair->n != 2)
                RAISE(r, "dictionary update sequence element #%lld has length %zu; 2 is required",
                      (long long)i, pair->n);
            j_dict_set(r, d, pair->v[0], pair->v[1]);
        }
    }
    for (int i = 0; i < c->n_kw; i++)
        j_dict_set(r, d, v_str(c->kw[i].name), c->kw[i].v);
    return d;
}

static value g_dict(jrun *r, value *a, const args *c)
{
    (void)a;
    return v_dict(make_dict(r, c, "dict"));
}

static value g_namespace(jrun *r, value *a, const args *c)
{
    (void)a;
    return (value){ .type = V_NAMESPACE, .u.d = make_dict(r, c, "dict") };
}

static value g_cycler(jrun *r, value *a, const args *c)
{
    (void)a;
    if (c->n_kw) RAISE(r, "Cycler.__init__() got an unexpected keyword argument");
    if (!c->n) RAISE(r, "at least one item has to be provided");
    cycler *y = jinja_alloc(r, 1, sizeof *y);
    y->items = j_list_new(r, (size_t)c->n);
    for (int i = 0; i < c->n; i++)
        j_list_add(r, y->items, c->v[i]);
    return (value){ .type = V_CYCLER, .u.cyc = y };
}

static value g_joiner(jrun *r, value *a, const args *c)
{
    (void)c;
    joiner *j = jinja_alloc(r, 1, sizeof *j);
    j->sep = v_given(a[0]) ? a[0] : j_v_text(r, ", ");
    return (value){ .type = V_JOINER, .u.join = j };
}

static value g_raise(jrun *r, value *a, const args *c)
{
    (void)c;
    const str *s = j_to_str(r, a[0]);
    RAISE(r, "%.*s", (int)(s->n > 800 ? 800 : s->n), s->s);
}

static value g_strftime_now(jrun *r, value *a, const args *c)
{
    (void)c;
    if (!r->options->now) jinja_fail(r, INFER_UNSUPPORTED, "strftime_now is not available here");
    if (a[0].type != V_STR)
        RAISE(r, "strftime() argument 1 must be str, not %s", j_type_name(a[0]));
    return v_str(j_format_time(r, a[0].u.s, r->options->now));
}

static value g_lipsum(jrun *r, value *a, const args *c)
{
    (void)a;
    (void)c;
    jinja_fail(r, INFER_UNSUPPORTED, "lipsum is not supported: its text is random");
}

static const builtin globals[] = {
    { "range", g_range, "/start ?stop ?step" },
    { "dict", g_dict, "*" },
    { "namespace", g_namespace, "*" },
    { "cycler", g_cycler, "*" },
    { "joiner", g_joiner, "?sep" },
    { "raise_exception", g_raise, "message" },
    { "strftime_now", g_strftime_now, "fmt" },
    { "lipsum", g_lipsum, "*" },
};

const builtin *j_find_global(const str *name)
{
    for (int i = 0; i < COUNT_OF(globals); i++)
        if (j_str_is(name, globals[i].name)) return &globals[i];
    return NULL;
}
