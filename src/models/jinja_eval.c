/*
 * jinja_eval.c: expressions: names, operators, attributes and subscripts by jinja2's rules, and
 * calls.
 *
 * eval is only a switch: each kind has a function of its own, not inlined, so that a level of
 * nesting costs little stack.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/jinja_impl.h"

#define NOINLINE __attribute__((noinline))

/* ---- arithmetic ---------------------------------------------------------------------------- */

static const char *const op_signs[] = { "+", "-", "*", "/", "//", "%", "** or pow()" };

static _Noreturn void fail_operands(jrun *r, op o, value a, value b)
{
    if (a.type == V_UNDEFINED) j_fail_undefined(r, a);
    if (b.type == V_UNDEFINED) j_fail_undefined(r, b);
    if (o == OP_ADD &&
        ((a.type == V_STR && !a.u.s->markup) || a.type == V_LIST || a.type == V_TUPLE))
        RAISE(r, "can only concatenate %s (not \"%s\") to %s", j_type_name(a), j_type_name(b),
              j_type_name(a));
    RAISE(r, "unsupported operand type(s) for %s: '%s' and '%s'", op_signs[o], j_type_name(a),
          j_type_name(b));
}

static _Noreturn void fail_overflow(jrun *r) { RAISE(r, "integer result does not fit 64 bits"); }

static value int_pow(jrun *r, int64_t a, int64_t e)
{
    if (e < 0) {
        if (!a) RAISE(r, "0.0 cannot be raised to a negative power");
        return v_float(pow((double)a, (double)e));
    }
    int64_t out = 1;
    while (e) {
        if ((e & 1) && __builtin_mul_overflow(out, a, &out)) fail_overflow(r);
        e >>= 1;
        if (e && __builtin_mul_overflow(a, a, &a)) fail_overflow(r);
    }
    return v_int(out);
}

static value int_op(jrun *r, op o, int64_t a, int64_t b)
{
    int64_t out;
    bool over = false;
    switch (o) {
    case OP_ADD: over = __builtin_add_overflow(a, b, &out); break;
    case OP_SUB: over = __builtin_sub_overflow(a, b, &out); break;
    case OP_MUL: over = __builtin_mul_overflow(a, b, &out); break;
    case OP_POW: return int_pow(r, a, b);
    case OP_DIV:
        if (!b) RAISE(r, "division by zero");
        return v_float((double)a / (double)b);
    case OP_FLOORDIV:
        if (!b) RAISE(r, "integer division or modulo by zero");
        if (b == -1) { // INT64_MIN / -1 traps
            over = __builtin_sub_overflow((int64_t)0, a, &out);
            break;
        }
        out = a / b - (a % b != 0 && (a < 0) != (b < 0));
        break;
    default:
        if (!b) RAISE(r, "integer modulo by zero");
        out = b == -1 ? 0 : a % b;
        if (out && (out < 0) != (b < 0)) out += b;
        break;
    }
    if (over) fail_overflow(r);
    return v_int(out);
}

static double float_mod(double a, double b)
{
    double m = fmod(a, b);
    if (m != 0 && (m < 0) != (b < 0)) m += b;
    return m != 0 ? m : copysign(0, b);
}

static value float_op(jrun *r, op o, double a, double b)
{
    switch (o) {
    case OP_ADD: return v_float(a + b);
    case OP_SUB: return v_float(a - b);
    case OP_MUL: return v_float(a * b);
    case OP_DIV:
        if (b == 0) RAISE(r, "float division by zero");
        return v_float(a / b);
    case OP_FLOORDIV: {
        if (b == 0) RAISE(r, "float floor division by zero");
        double m = float_mod(a, b), div = (a - m) / b;
        if (div == 0) return v_float(copysign(0, a / b));
        double whole = floor(div);
        return v_float(div - whole > 0.5 ? whole + 1 : whole);
    }
    case OP_MOD:
        if (b == 0) RAISE(r, "float modulo");
        return v_float(float_mod(a, b));
    default: {
        if (a == 0 && b < 0) RAISE(r, "0.0 cannot be raised to a negative power");
        if (a < 0 && b != floor(b)) RAISE(r, "complex results are not supported");
        double p = pow(a, b);
        if (isinf(p) && isfinite(a) && isfinite(b))
            RAISE(r, "(34, 'Numerical result out of range')");
        return v_float(p);
    }
    }
}

static value repeat(jrun *r, value of, int64_t n)
{
    if (n < 0) n = 0;
    if (of.type == V_STR) {
        builder b;
        j_sb_init(&b, r);
        if (n && of.u.s->n > r->max_text / (size_t)n)
            jinja_fail(r, INFER_LIMIT, "the template makes text of more than %zu bytes",
                       r->max_text);
        for (int64_t i = 0; i < n && of.u.s->n; i++) {
            jinja_step(r, 1);
            j_sb_str(&b, of.u.s);
        }
        str *s = j_sb_done(&b);
        s->markup = of.u.s->markup;
        return v_str(s);
    }
    list *out = j_list_new(r, 0);
    for (int64_t i = 0; i < n && of.u.l->n; i++) {
        for (size_t k = 0; k < of.u.l->n; k++) {
            jinja_step(r, 1);
            j_list_add(r, out, of.u.l->v[k]);
        }
    }
    return of.type == V_LIST ? v_list(out) : v_tuple(out);
}

static value join_lists(jrun *r, value a, value b)
{
    list *out = j_list_new(r, a.u.l->n + b.u.l->n);
    jinja_step(r, (a.u.l->n + b.u.l->n) / 8);
    if (a.u.l->n) memcpy(out->v, a.u.l->v, a.u.l->n * sizeof *out->v);
    if (b.u.l->n) memcpy(out->v + a.u.l->n, b.u.l->v, b.u.l->n * sizeof *out->v);
    out->n = a.u.l->n + b.u.l->n;
    return a.type == V_LIST ? v_list(out) : v_tuple(out);
}

static bool is_integer(value v) { return v.type == V_INT || v.type == V_BOOL; }
static bool is_sequence(value v)
{
    return v.type == V_STR || v.type == V_LIST || v.type == V_TUPLE;
}

value j_binary(jrun *r, op o, value a, value b)
{
    if (is_integer(a) && is_integer(b)) return int_op(r, o, j_need_int(r, a), j_need_int(r, b));
    if (j_is_number(a) && j_is_number(b)) return float_op(r, o, j_as_double(a), j_as_double(b));
    if (o == OP_MOD && a.type == V_STR) return j_format_percent(r, a.u.s, b);
    if (o == OP_ADD && a.type == V_STR && b.type == V_STR) {
        bool markup = a.u.s->markup || b.u.s->markup;
        str *x = markup ? j_escape_html(r, a) : a.u.s, *y = markup ? j_escape_html(r, b) : b.u.s;
        str *s = j_str_concat(r, x, y);
        s->markup = markup;
        return v_str(s);
    }
    if (o == OP_ADD && a.type == b.type && (a.type == V_LIST || a.type == V_TUPLE))
        return join_lists(r, a, b);
    if (o == OP_MUL && is_sequence(a) && is_integer(b)) return repeat(r, a, j_need_int(r, b));
    if (o == OP_MUL && is_sequence(b) && is_integer(a)) return repeat(r, b, j_need_int(r, a));
    if (o == OP_MUL && is_sequence(a) && b.type != V_UNDEFINED)
        RAISE(r, "can't multiply sequence by non-int of type '%s'", j_type_name(b));
    if (o == OP_MUL && is_sequence(b) && a.type != V_UNDEFINED)
        RAISE(r, "can't multiply sequence by non-int of type '%s'", j_type_name(a));
    fail_operands(r, o, a, b);
}

static bool compare_op(jrun *r, op o, value a, value b)
{
    switch (o) {
    case OP_EQ: return j_equal(r, a, b);
    case OP_NE: return !j_equal(r, a, b);
    case OP_IN: return j_contains(r, b, a);
    case OP_NOTIN: return !j_contains(r, b, a);
    default: return j_compare(r, a, b, o);
    }
}

/* ---- attributes and subscripts ------------------------------------------------------------- */

static value bound(jrun *r, value self, const builtin *fn)
{
    method *m = jinja_alloc(r, 1, sizeof *m);
    *m = (method){ .self = self, .fn = fn };
    return (value){ .type = V_METHOD, .u.m = m };
}

static value macro_attr(jrun *r, const macro *m, const str *name)
{
    const node *d = m->def;
    bool explicit_caller = false;
    list *l = j_list_new(r, (size_t)d->n_items);
    for (int i = 0; i < d->n_items; i++) {
        j_list_add(r, l, v_str(d->items[i]->name));
        explicit_caller |= j_str_is(d->items[i]->name, "caller");
    }
    if (j_str_is(name, "name")) return d->name ? v_str(d->name) : v_none();
    if (j_str_is(name, "arguments")) return v_tuple(l);
    if (j_str_is(name, "catch_kwargs")) return v_bool(d->uses_kwargs);
    if (j_str_is(name, "catch_varargs")) return v_bool(d->uses_varargs);
    if (j_str_is(name, "caller")) return v_bool(d->uses_caller);
    if (j_str_is(name, "explicit_caller")) return v_bool(explicit_caller);
    return (value){ 0 };
}

static value cycler_attr(jrun *r, value c, const str *name)
{
    if (j_str_is(name, "current")) return c.u.cyc->items->v[c.u.cyc->pos];
    if (j_str_is(name, "pos")) return v_int((int64_t)c.u.cyc->pos);
    if (j_str_is(name, "items")) return v_tuple(c.u.cyc->items);
    const builtin *fn = j_find_method(c, name);
    return fn ? bound(r, c, fn) : (value){ 0 };
}

static value number_attr(value v, const str *name)
{
    if (j_str_is(name, "real")) return v.type == V_BOOL ? v_int(v.u.b) : v;
    if (j_str_is(name, "imag")) return v.type == V_FLOAT ? v_float(0) : v_int(0);
    if (v.type == V_FLOAT) return (value){ 0 };
    if (j_str_is(name, "numerator")) return v.type == V_BOOL ? v_int(v.u.b) : v;
    return j_str_is(name, "denominator") ? v_int(1) : (value){ 0 };
}

/* Python's getattr as the sandbox lets it through; V_MISSING: no such attribute. */
static value attribute(jrun *r, value of, str *name)
{
    value out = { 0 };
    switch (of.type) {
    case V_UNDEFINED:
        if (name->n < 4 || memcmp(name->s, "__", 2) || memcmp(name->s + name->n - 2, "__", 2))
            j_fail_undefined(r, of);
        break;
    case V_NAMESPACE: {
        value *v = j_dict_find(r, of.u.d, v_str(name));
        if (!v) return out;
        if (name->n && name->s[0] == '_') break;
        return *v;
    }
    case V_LOOP: out = j_loop_attr(r, of.u.loop, name); break;
    case V_MACRO: out = macro_attr(r, of.u.mac, name); break;
    case V_CYCLER: return cycler_attr(r, of, name);
    case V_JOINER:
        if (j_str_is(name, "sep")) return of.u.join->sep;
        if (j_str_is(name, "used")) return v_bool(of.u.join->used);
        break;
    case V_BOOL:
    case V_INT:
    case V_FLOAT: out = number_attr(of, name); break;
    case V_RANGE:
        if (j_str_is(name, "start")) return v_int(of.u.r->start);
        if (j_str_is(name, "stop")) return v_int(of.u.r->stop);
        if (j_str_is(name, "step")) return v_int(of.u.r->step);
        break;
    case V_TUPLE:
        if (of.u.l->group && j_str_is(name, "grouper")) return of.u.l->v[0];
        if (of.u.l->group && j_str_is(name, "list")) return of.u.l->v[1];
        break;
    default: break;
    }
    if (out.type != V_MISSING) return out;
    const builtin *fn = j_find_method(of, name);
    if (fn) return bound(r, of, fn);
    if (!j_is_unsafe_attribute(of, name)) return out;
    // Using it raises, as the sandbox does; asking whether it is defined does not.
    undefined *u = jinja_alloc(r, 1, sizeof *u);
    builder b;
    j_sb_init(&b, r);
    j_sb_lit(&b, "access to attribute ");
    j_sb_repr(&b, v_str(name));
    j_sb_fmt(&b, " of '%s' object is unsafe.", j_type_name(of));
    u->hint = j_sb_done(&b);
    u->hint->buf = NULL;
    return (value){ .type = V_UNDEFINED, .u.u = u };
}

/* of[key]; V_MISSING where Python raises TypeError or LookupError. */
static value subscript(jrun *r, value of, value key)
{
    value none = { 0 };
    if (of.type == V_UNDEFINED) j_fail_undefined(r, of);
    if (of.type == V_DICT) {
        if (key.type == V_LIST || key.type == V_DICT || key.type == V_SLICE) return none;
        value *v = j_dict_find(r, of.u.d, key);
        return v ? *v : none;
    }
    if (key.type == V_SLICE && (is_sequence(of) || of.type == V_RANGE))
        return j_get_slice(r, of, key.u.slice[0], key.u.slice[1], key.u.slice[2]);
    if (!is_integer(key) || !(is_sequence(of) || of.type == V_RANGE)) return none;
    int64_t i = j_need_int(r, key), n = j_length(r, of);
    if (i < 0) i += n;
    if (i < 0 || i >= n) return none;
    if (of.type == V_RANGE) return v_int(of.u.r->start + i * of.u.r->step);
    if (of.type != V_STR) return of.u.l->v[i];
    size_t from = j_char_offset(r, of.u.s, i), to = from + 1;
    while (to < of.u.s->n && ((unsigned char)of.u.s->s[to] & 0xc0) == 0x80)
        to++;
    return v_str(j_str_part(r, of.u.s, from, to));
}

value j_get_attr(jrun *r, value of, str *name)
{
    value v = attribute(r, of, name);
    if (v_given(v)) return v;
    v = subscript(r, of, v_str(name));
    return v_given(v) ? v : j_v_undefined_item(r, of, v_str(name));
}

value j_get_item(jrun *r, value of, value key)
{
    value v = subscript(r, of, key);
    if (v_given(v)) return v;
    if (key.type == V_STR) {
        v = attribute(r, of, key.u.s);
        if (v_given(v)) return v;
    }
    return j_v_undefined_item(r, of, key);
}

/* A slice bound as Python clamps it. */
static int64_t slice_bound(jrun *r, value v, int64_t n, int64_t low, int64_t high, int64_t absent)
{
    if (!v_given(v) || v.type == V_NONE) return absent;
    if (!is_integer(v))
        RAISE(r, "slice indices must be integers or None or have an __index__ method");
    int64_t i = j_need_int(r, v);
    if (i < 0) i = i < -n ? -1 - n : i + n; // below the start: clamped next
    return i < low ? low : i > high ? high : i;
}

value j_get_slice(jrun *r, value of, value start, value stop, value step)
{
    if (of.type == V_UNDEFINED) j_fail_undefined(r, of);
    if (of.type == V_DICT) RAISE(r, "unhashable type: 'slice'");
    if (!is_sequence(of) && of.type != V_RANGE)
        RAISE(r, "'%s' object is not subscriptable", j_type_name(of));
    int64_t n = j_length(r, of), by = 1;
    if (v_given(step) && step.type != V_NONE) {
        if (!is_integer(step))
            RAISE(r, "slice indices must be integers or None or have an __index__ method");
        by = j_need_int(r, step);
        if (!by) RAISE(r, "slice step cannot be zero");
        if (by > n + 1) by = n + 1;
        if (by < -n - 1) by = -n - 1;
    }
    int64_t low = by < 0 ? -1 : 0, high = by < 0 ? n - 1 : n;
    int64_t from = slice_bound(r, start, n, low, high, by < 0 ? n - 1 : 0);
    int64_t to = slice_bound(r, stop, n, low, high, by < 0 ? -1 : n);
    if (of.type == V_STR && by == 1) {
        if (to < from) to = from;
        size_t a = j_char_offset(r, of.u.s, from), b = j_char_offset(r, of.u.s, to);
        return v_str(j_str_part(r, of.u.s, a, b));
    }
    if (of.type == V_RANGE) {
        range *out = jinja_alloc(r, 1, sizeof *out);
        const range *x = of.u.r;
        int64_t count = by > 0 ? (to - from + by - 1) / by : (from - to - by - 1) / -by;
        *out = (range){ x->start + from * x->step, x->start + to * x->step, x->step * by,
                        count > 0 ? count : 0 };
        return (value){ .type = V_RANGE, .u.r = out };
    }
    const list *items = of.type == V_STR ? j_to_list(r, of) : of.u.l;
    list *out = j_list_new(r, 0);
    for (int64_t i = from; by > 0 ? i < to : i > to; i += by) {
        jinja_step(r, 1);
        j_list_add(r, out, items->v[i]);
    }
    if (of.type == V_LIST) return v_list(out);
    if (of.type == V_TUPLE) return v_tuple(out);
    builder b;
    j_sb_init(&b, r);
    for (size_t i = 0; i < out->n; i++)
        j_sb_str(&b, out->v[i].u.s);
    str *s = j_sb_done(&b);
    s->markup = of.u.s->markup;
    return v_str(s);
}

/* ---- calls --------------------------------------------------------------------------------- */

static void dyn_kwargs(jrun *r, args *out, value v)
{
    if (v.type != V_DICT) RAISE(r, "argument after ** must be a mapping, not %s", j_type_name(v));
    kwarg *kw = jinja_alloc(r, (size_t)out->n_kw + v.u.d->n, sizeof *kw);
    if (out->n_kw) memcpy(kw, out->kw, (size_t)out->n_kw * sizeof *kw);
    for (size_t i = 0; i < v.u.d->n; i++) {
        value key = v.u.d->e[i].key;
        if (key.type != V_STR) RAISE(r, "keywords must be strings");
        for (int k = 0; k < out->n_kw; k++)
            if (!j_str_cmp(kw[k].name, key.u.s))
                RAISE(r, "got multiple values for keyword argument '%.*s'", (int)key.u.s->n,
                      key.u.s->s);
        jinja_step(r, (uint64_t)out->n_kw + 1);
        kw[out->n_kw + (int)i] = (kwarg){ key.u.s, v.u.d->e[i].val };
    }
    out->kw = kw;
    out->n_kw += (int)v.u.d->n;
}

/* The arguments of n with room for room_before values in front of out->v. */
void j_eval_args(jrun *r, scope *s, const node *n, args *out, int room_before)
{
    int total = n->n_items;
    value *v = jinja_alloc(r, (size_t)(total + room_before), sizeof *v);
    for (int i = 0; i < n->n_items; i++)
        v[room_before + i] = j_eval(r, s, n->items[i]);
    kwarg *kw = n->n_kw ? jinja_alloc(r, (size_t)n->n_kw, sizeof *kw) : NULL;
    for (int i = 0; i < n->n_kw; i++)
        kw[i] = (kwarg){ n->kw[i].name, j_eval(r, s, n->kw[i].v) };
    *out = (args){ .kw = kw, .n_kw = n->n_kw };
    if (n->b && n->kind != N_COND) {
        value more = j_eval(r, s, n->b);
        if (!j_is_iterable(more))
            RAISE(r, "argument after * must be an iterable, not %s", j_type_name(more));
        list *l = j_to_list(r, more);
        value *all = jinja_alloc(r, (size_t)(total + room_before) + l->n, sizeof *all);
        memcpy(all, v, (size_t)(total + room_before) * sizeof *all);
        if (l->n) memcpy(all + room_before + total, l->v, l->n * sizeof *all);
        v = all;
        total += (int)l->n;
    }
    if (n->c) dyn_kwargs(r, out, j_eval(r, s, n->c));
    out->v = v + room_before;
    out->n = total;
}

/* Parameter i of the list "a b ?c": its name; false where there is none. */
static bool parameter(const char *params, int i, const char **name, size_t *n, bool *optional)
{
    const char *p = params;
    if (*p == '/') p++;
    for (; *p; i--) {
        while (*p == ' ')
            p++;
        *optional = *p == '?';
        p += *optional;
        *n = strcspn(p, " ");
        *name = p;
        if (!i) return *n > 0;
        p += *n;
    }
    return false;
}

value j_call_builtin(jrun *r, const builtin *fn, const char *kind, const args *call)
{
    jinja_step(r, 1);
    if (fn->params[0] == '*') return fn->fn(r, call->v, call);
    value a[MAX_PARAMS] = { 0 };
    const char *name;
    size_t n;
    bool optional, positional_only = fn->params[0] == '/';
    int count = 0;
    while (parameter(fn->params, count, &name, &n, &optional))
        count++;
    if (call->n > count)
        RAISE(r, "%s%s() takes %d positional argument%s but %d were given", kind, fn->name, count,
              count == 1 ? "" : "s", call->n);
    for (int i = 0; i < call->n; i++)
        a[i] = call->v[i];
    for (int k = 0; k < call->n_kw; k++) {
        const str *key = call->kw[k].name;
        int at = -1;
        for (int i = 0; i < count && !positional_only; i++) {
            parameter(fn->params, i, &name, &n, &optional);
            if (n == key->n && !memcmp(name, key->s, n)) at = i;
        }
        if (positional_only) RAISE(r, "%s%s() takes no keyword arguments", kind, fn->name);
        if (at < 0)
            RAISE(r, "%s%s() got an unexpected keyword argument '%.*s'", kind, fn->name,
                  (int)(key->n > 60 ? 60 : key->n), key->s);
        if (v_given(a[at]))
            RAISE(r, "%s%s() got multiple values for argument '%.*s'", kind, fn->name, (int)key->n,
                  key->s);
        a[at] = call->kw[k].v;
    }
    for (int i = 0; i < count; i++) {
        parameter(fn->params, i, &name, &n, &optional);
        if (!optional && !v_given(a[i]))
            RAISE(r, "%s%s() missing 1 required positional argument: '%.*s'", kind, fn->name,
                  (int)n, name);
    }
    return fn->fn(r, a, call);
}

/* call->v must have room for one value in front. */
value j_call_value(jrun *r, value f, args *call)
{
    switch (f.type) {
    case V_UNDEFINED: j_fail_undefined(r, f);
    case V_FUNCTION: return j_call_builtin(r, f.u.fn, "", call);
    case V_METHOD: {
        static const char *const owners[] = {
            [V_STR] = "str.", [V_LIST] = "list.", [V_DICT] = "dict.", [V_TUPLE] = "tuple."
        };
        value self = f.u.m->self;
        const char *owner =
            (size_t)self.type < sizeof owners / sizeof *owners ? owners[self.type] : "";
        call->v--;
        call->n++;
        call->v[0] = self;
        return j_call_builtin(r, f.u.m->fn, owner ? owner : "", call);
    }
    case V_MACRO: return j_call_macro(r, f.u.mac, call);
    case V_LOOP:
        if (call->n != 1 || call->n_kw) RAISE(r, "loop() takes 1 argument (%d given)", call->n);
        return v_str(j_loop_recurse(r, f.u.loop, call->v[0]));
    case V_JOINER: {
        joiner *j = f.u.join;
        if (call->n || call->n_kw) RAISE(r, "joiner takes no arguments");
        bool first = !j->used;
        j->used = true;
        return first ? j_v_text(r, "") : j->sep;
    }
    default: RAISE(r, "'%s' object is not callable", j_type_name(f));
    }
}

static NOINLINE value eval_call(jrun *r, scope *s, const node *n)
{
    value f = j_eval(r, s, n->a);
    args call;
    j_eval_args(r, s, n, &call, 1);
    r->line = n->line;
    return j_call_value(r, f, &call);
}

static _Noreturn void fail_unknown(jrun *r, const node *n)
{
    RAISE(r, "No %s named '%.*s' found.", n->kind == N_FILTER ? "filter" : "test",
          (int)(n->name->n > 80 ? 80 : n->name->n), n->name->s);
}

/* A filter or test; *in is what it is applied to where n->a is NULL: the text of a block. */
NOINLINE value j_eval_filter(jrun *r, scope *s, const node *n, value *in)
{
    value of =
        n->a ? n->a->kind == N_FILTER && in ? j_eval_filter(r, s, n->a, in) : j_eval(r, s, n->a)
             : *in;
    args call;
    j_eval_args(r, s, n, &call, 1);
    r->line = n->line;
    if (!n->fn) fail_unknown(r, n);
    call.v--;
    call.n++;
    call.v[0] = of;
    return j_call_builtin(r, n->fn, n->kind == N_FILTER ? "do_" : "test_", &call);
}

/* ---- the switch ---------------------------------------------------------------------------- */

static NOINLINE value eval_name(jrun *r, scope *s, const node *n)
{
    for (int up = n->up; up; up--)
        s = s->parent;
    value v = s->v[n->slot];
    return v_given(v) ? v : j_v_undefined(r, n->name);
}

static NOINLINE value eval_list(jrun *r, scope *s, const node *n)
{
    list *l = j_list_new(r, (size_t)n->n_items);
    for (int i = 0; i < n->n_items; i++)
        j_list_add(r, l, j_eval(r, s, n->items[i]));
    return n->kind == N_LIST ? v_list(l) : v_tuple(l);
}

static NOINLINE value eval_dict(jrun *r, scope *s, const node *n)
{
    dict *d = j_dict_new(r);
    for (int i = 0; i < n->n_items; i += 2) {
        value key = j_eval(r, s, n->items[i]);
        j_dict_set(r, d, key, j_eval(r, s, n->items[i + 1]));
    }
    return v_dict(d);
}

static NOINLINE value eval_concat(jrun *r, scope *s, const node *n)
{
    // Appending to the first operand in place keeps text that grows in a loop linear.
    str *first = j_str_plain(r, j_to_str(r, j_eval(r, s, n->items[0])));
    for (int i = 1; i < n->n_items; i++)
        first = j_str_concat(r, first, j_to_str(r, j_eval(r, s, n->items[i])));
    return v_str(first);
}

static NOINLINE value eval_chain(jrun *r, scope *s, const node *n)
{
    value v = j_eval(r, s, n->items[0]);
    for (int i = 1; i < n->n_items; i++) {
        value right = j_eval(r, s, n->items[i]);
        v = j_binary(r, (op)n->ops[i - 1], v, right);
    }
    return v;
}

static NOINLINE value eval_compare(jrun *r, scope *s, const node *n)
{
    value left = j_eval(r, s, n->items[0]);
    for (int i = 1; i < n->n_items; i++) {
        value right = j_eval(r, s, n->items[i]);
        if (!compare_op(r, (op)n->ops[i - 1], left, right)) return v_bool(false);
        left = right;
    }
    return v_bool(true);
}

static NOINLINE value eval_logic(jrun *r, scope *s, const node *n)
{
    value v = j_eval(r, s, n->items[0]);
    for (int i = 1; i < n->n_items && j_truth(r, v) == (n->kind == N_AND); i++)
        v = j_eval(r, s, n->items[i]);
    return v;
}

static NOINLINE value eval_sign(jrun *r, scope *s, const node *n)
{
    value v = j_eval(r, s, n->a);
    bool minus = n->kind == N_NEG;
    if (v.type == V_UNDEFINED) j_fail_undefined(r, v);
    if (v.type == V_FLOAT) return v_float(minus ? -v.u.f : v.u.f);
    if (!is_integer(v))
        RAISE(r, "bad operand type for unary %c: '%s'", minus ? '-' : '+', j_type_name(v));
    int64_t i = j_need_int(r, v);
    if (minus && i == INT64_MIN) fail_overflow(r);
    return v_int(minus ? -i : i);
}

static NOINLINE value eval_cond(jrun *r, scope *s, const node *n)
{
    if (j_truth(r, j_eval(r, s, n->b))) return j_eval(r, s, n->a);
    if (n->c) return j_eval(r, s, n->c);
    char hint[120];
    snprintf(hint, sizeof hint,
             "the inline if-expression on line %d evaluated to false and no else"
             " section was defined.",
             n->line);
    return j_v_undefined_hint(r, hint);
}

static NOINLINE value eval_slice_value(jrun *r, scope *s, const node *n)
{
    value *v = jinja_alloc(r, 3, sizeof *v);
    if (n->a) v[0] = j_eval(r, s, n->a);
    if (n->b) v[1] = j_eval(r, s, n->b);
    if (n->c) v[2] = j_eval(r, s, n->c);
    return (value){ .type = V_SLICE, .u.slice = v };
}

static NOINLINE value eval_item(jrun *r, scope *s, const node *n)
{
    value of = j_eval(r, s, n->a), key = j_eval(r, s, n->b);
    r->line = n->line;
    if (key.type != V_SLICE) return j_get_item(r, of, key);
    return j_get_slice(r, of, key.u.slice[0], key.u.slice[1], key.u.slice[2]);
}

static NOINLINE value eval_attr(jrun *r, scope *s, const node *n)
{
    value of = j_eval(r, s, n->a);
    r->line = n->line;
    return j_get_attr(r, of, n->attr);
}

static NOINLINE value eval_not(jrun *r, scope *s, const node *n)
{
    return v_bool(!j_truth(r, j_eval(r, s, n->a)));
}

value j_eval(jrun *r, scope *s, const node *n)
{
    value v;
    if (n->kind == N_CONST) return n->konst;
    jinja_enter(r);
    switch (n->kind) {
    case N_NAME: v = eval_name(r, s, n); break;
    case N_TUPLE:
    case N_LIST: v = eval_list(r, s, n); break;
    case N_DICT: v = eval_dict(r, s, n); break;
    case N_CONCAT: v = eval_concat(r, s, n); break;
    case N_CHAIN: v = eval_chain(r, s, n); break;
    case N_COMPARE: v = eval_compare(r, s, n); break;
    case N_AND:
    case N_OR: v = eval_logic(r, s, n); break;
    case N_NOT: v = eval_not(r, s, n); break;
    case N_NEG:
    case N_POS: v = eval_sign(r, s, n); break;
    case N_COND: v = eval_cond(r, s, n); break;
    case N_ATTR: v = eval_attr(r, s, n); break;
    case N_ITEM: v = eval_item(r, s, n); break;
    case N_SLICE: v = eval_slice_value(r, s, n); break;
    case N_CALL: v = eval_call(r, s, n); break;
    case N_FILTER:
    case N_TEST: v = j_eval_filter(r, s, n, NULL); break;
    default: v = v_none(); break;
    }
    jinja_leave(r);
    return v;
}
