/*
 * jinja_exec.c: statements, loops with their `loop` object, macros; and the two entry points,
 * compile and render.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "models/jinja_impl.h"

/* What a body ends with. */
typedef enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } flow;
static flow exec_body(jrun *r, scope *s, const body *b);

#define NOINLINE __attribute__((noinline))

/* ---- scopes -------------------------------------------------------------------------------- */

static value resolve(jrun *r, str *name)
{
    value *v = j_dict_find(r, r->context, v_str(name));
    if (v) return *v;
    const builtin *fn = j_find_global(name);
    if (fn) return (value){ .type = V_FUNCTION, .u.fn = fn };
    if (j_str_is(name, "self") || j_str_is(name, "super"))
        jinja_fail(r, INFER_UNSUPPORTED, "'%s' is not supported: a chat template is one file",
                   j_str_is(name, "self") ? "self" : "super");
    return (value){ 0 };
}

static scope *scope_new(jrun *r, const frame *f, scope *parent)
{
    scope *s = jinja_alloc(r, 1, sizeof *s + (size_t)f->n * sizeof(value));
    s->parent = parent;
    s->frame = f;
    for (int i = 0; i < f->n; i++) {
        const symbol *y = &f->sym[i];
        if (y->load == LOAD_RESOLVE) {
            s->v[i] = resolve(r, y->name);
        } else if (y->load == LOAD_ALIAS) {
            scope *from = s;
            for (int up = y->up; up; up--)
                from = from->parent;
            s->v[i] = from->v[y->slot];
        }
    }
    return s;
}

static void assign(jrun *r, scope *s, const node *target, value v)
{
    if (target->kind == N_TUPLE) {
        size_t want = (size_t)target->n_items;
        if (!j_is_iterable(v)) RAISE(r, "cannot unpack non-iterable %s object", j_type_name(v));
        list *l = j_to_list(r, v);
        if (l->n < want)
            RAISE(r, "not enough values to unpack (expected %zu, got %zu)", want, l->n);
        if (l->n > want) RAISE(r, "too many values to unpack (expected %zu)", want);
        for (size_t i = 0; i < want; i++)
            assign(r, s, target->items[i], l->v[i]);
        return;
    }
    for (int up = target->up; up; up--)
        s = s->parent;
    if (target->kind == N_NAME) {
        s->v[target->slot] = v;
        return;
    }
    value ns = s->v[target->slot];
    if (ns.type != V_NAMESPACE) // of a set block; else check_namespaces was first
        RAISE(r, "'%s' object does not support item assignment",
              v_given(ns) ? j_type_name(ns) : "_MissingType");
    j_dict_set(r, ns.u.d, v_str(target->attr), v);
}

/* Namespaces are checked before the value is evaluated. */
static void check_namespaces(jrun *r, scope *s, const node *target)
{
    for (int i = 0; target->kind == N_TUPLE && i < target->n_items; i++)
        check_namespaces(r, s, target->items[i]);
    if (target->kind != N_NSREF) return;
    for (int up = target->up; up; up--)
        s = s->parent;
    if (s->v[target->slot].type != V_NAMESPACE)
        RAISE(r, "cannot assign attribute on non-namespace object");
}

/* Runs a body with its output going into a string. */
static flow capture(jrun *r, scope *s, const body *b, str **out)
{
    builder text, *outer = r->out;
    j_sb_init(&text, r);
    r->out = &text;
    flow f = exec_body(r, s, b);
    r->out = outer;
    *out = j_sb_done(&text);
    return f;
}

/* ---- loops --------------------------------------------------------------------------------- */

/* One running loop: what the iteration needs and what `loop` shows. Items are fetched one ahead
 * only where `loop.last` or `loop.nextitem` ask, because the loop's test may depend on what its
 * body did. */
struct loop {
    const node *def;
    scope *outer, *test; // test: the scope of the `if`, made at the first item
    value iterable;
    cursor c;
    list *rest; // what loop.length had to fetch; then comes from here
    size_t rest_pos;
    int64_t index0, length; // length -1: not known yet
    int depth0;
    value current, before, after, changed;
    bool has_after, has_changed;
};

static bool fetch(jrun *r, loop *l, value *out)
{
    if (l->rest) {
        if (l->rest_pos >= l->rest->n) return false;
        *out = l->rest->v[l->rest_pos++];
        return true;
    }
    while (j_cursor_next(r, &l->c, out)) {
        if (!l->def->c) return true;
        if (!l->test) l->test = scope_new(r, l->def->frame_test, l->outer);
        assign(r, l->test, l->def->a, *out);
        if (j_truth(r, j_eval(r, l->test, l->def->c))) return true;
    }
    return false;
}

static bool advance(jrun *r, loop *l)
{
    value v;
    if (l->has_after) {
        if (!v_given(l->after)) return false;
        v = l->after;
        l->has_after = false;
    } else if (!fetch(r, l, &v)) {
        return false;
    }
    l->index0++;
    l->before = l->current;
    l->current = v;
    return true;
}

static bool peek(jrun *r, loop *l)
{
    if (!l->has_after) {
        value v;
        l->after = fetch(r, l, &v) ? v : (value){ 0 };
        l->has_after = true;
    }
    return v_given(l->after);
}

int64_t j_loop_length(jrun *r, loop *l)
{
    if (l->length >= 0) return l->length;
    value it = l->iterable;
    if (!l->def->c && it.type != V_ITER) return l->length = j_length(r, it);
    list *rest = j_list_new(r, 0);
    for (value v; fetch(r, l, &v);)
        j_list_add(r, rest, v);
    l->rest = rest;
    l->rest_pos = 0;
    return l->length = (int64_t)rest->n + l->index0 + 1 + (l->has_after && v_given(l->after));
}

int64_t j_loop_index(const loop *l) { return l->index0 + 1; }

value j_loop_attr(jrun *r, loop *l, const str *name)
{
    if (j_str_is(name, "index")) return v_int(l->index0 + 1);
    if (j_str_is(name, "index0")) return v_int(l->index0);
    if (j_str_is(name, "first")) return v_bool(!l->index0);
    if (j_str_is(name, "last")) return v_bool(!peek(r, l));
    if (j_str_is(name, "length")) return v_int(j_loop_length(r, l));
    if (j_str_is(name, "revindex")) return v_int(j_loop_length(r, l) - l->index0);
    if (j_str_is(name, "revindex0")) return v_int(j_loop_length(r, l) - l->index0 - 1);
    if (j_str_is(name, "depth")) return v_int(l->depth0 + 1);
    if (j_str_is(name, "depth0")) return v_int(l->depth0);
    if (j_str_is(name, "previtem"))
        return l->index0 ? l->before : j_v_undefined_hint(r, "there is no previous item");
    if (j_str_is(name, "nextitem"))
        return peek(r, l) ? l->after : j_v_undefined_hint(r, "there is no next item");
    return (value){ 0 };
}

value j_loop_cycle(jrun *r, loop *l, const args *call)
{
    if (call->n < 2) RAISE(r, "no items for cycling given"); // the first is the loop itself
    return call->v[1 + l->index0 % (call->n - 1)];
}

bool j_loop_changed(jrun *r, loop *l, const args *call)
{
    list *now = j_list_new(r, (size_t)call->n);
    for (int i = 1; i < call->n; i++)
        j_list_add(r, now, call->v[i]);
    if (l->has_changed && j_equal(r, l->changed, v_tuple(now))) return false;
    l->has_changed = true;
    l->changed = v_tuple(now);
    return true;
}

static NOINLINE flow run_loop(jrun *r, scope *outer, const node *n, value items, int depth0)
{
    loop *l = jinja_alloc(r, 1, sizeof *l);
    *l = (loop){
        .def = n, .outer = outer, .iterable = items, .index0 = -1, .length = -1, .depth0 = depth0
    };
    l->c = j_iterate(r, items);
    bool or_else = true;
    while (advance(r, l)) {
        r->line = n->line;
        scope *s = scope_new(r, n->frame, outer);
        assign(r, s, n->a, l->current);
        if (n->extended) s->v[n->slot_loop] = (value){ .type = V_LOOP, .u.loop = l };
        flow f = exec_body(r, s, &n->body);
        if (f == FLOW_BREAK) break;
        // As in jinja2, only an iteration that runs to its end keeps the else from running.
        if (f == FLOW_NEXT) or_else = false;
    }
    if (!n->flag || !or_else) return FLOW_NEXT;
    return exec_body(r, scope_new(r, n->frame_else, outer), &n->orelse);
}

str *j_loop_recurse(jrun *r, loop *l, value items)
{
    if (!l->def->recursive)
        RAISE(r, "The loop must have the 'recursive' marker to be called recursively.");
    builder text, *outer = r->out;
    jinja_enter(r);
    j_sb_init(&text, r);
    r->out = &text;
    run_loop(r, l->outer, l->def, items, l->depth0 + 1);
    r->out = outer;
    jinja_leave(r);
    return j_sb_done(&text);
}

/* ---- macros -------------------------------------------------------------------------------- */

static value take_kwarg(const args *call, bool *taken, const char *name, size_t n)
{
    for (int i = 0; i < call->n_kw; i++) {
        if (taken[i] || call->kw[i].name->n != n || memcmp(call->kw[i].name->s, name, n)) continue;
        taken[i] = true;
        return call->kw[i].v;
    }
    return (value){ 0 };
}

static const char *macro_name(jrun *r, const node *d)
{
    return d->name ? j_repr(r, v_str(d->name))->s : "None";
}

/* Values of the parameters by the rules of jinja2's Macro. */
static void bind_arguments(jrun *r, const node *d, scope *s, const args *call)
{
    bool *taken = jinja_alloc(r, (size_t)call->n_kw, 1), found_caller = false;
    for (int i = 0; i < d->n_items; i++) {
        const str *name = d->items[i]->name;
        bool is_caller = j_str_is(name, "caller");
        if (i < call->n) {
            s->v[d->items[i]->slot] = call->v[i];
            if (call->n >= d->n_items) found_caller |= is_caller;
            continue;
        }
        s->v[d->items[i]->slot] = take_kwarg(call, taken, name->s, name->n);
        found_caller |= is_caller;
    }
    if (d->uses_caller && !found_caller) {
        value c = take_kwarg(call, taken, "caller", 6);
        if (!v_given(c) || c.type == V_NONE) c = j_v_undefined_hint(r, "No caller defined");
        s->v[d->slot_caller] = c;
    }
    dict *rest = j_dict_new(r);
    for (int i = 0; i < call->n_kw; i++) {
        if (taken[i]) continue;
        if (d->uses_kwargs) {
            j_dict_set(r, rest, v_str(call->kw[i].name), call->kw[i].v);
            continue;
        }
        for (int k = i; k < call->n_kw; k++)
            if (!taken[k] && j_str_is(call->kw[k].name, "caller"))
                RAISE(r,
                      "macro %s was invoked with two values for the special caller argument. This"
                      " is most likely a bug.",
                      macro_name(r, d));
        RAISE(r, "macro %s takes no keyword argument '%.*s'", macro_name(r, d),
              (int)call->kw[i].name->n, call->kw[i].name->s);
    }
    if (d->uses_kwargs) s->v[d->slot_kwargs] = v_dict(rest);
    list *more = j_list_new(r, 0);
    for (int i = d->n_items; i < call->n; i++)
        j_list_add(r, more, call->v[i]);
    if (d->uses_varargs)
        s->v[d->slot_varargs] = v_tuple(more);
    else if (more->n)
        RAISE(r, "macro %s takes not more than %d argument(s)", macro_name(r, d), d->n_items);
}

static void bind_defaults(jrun *r, const node *d, scope *s)
{
    for (int i = 0; i < d->n_items; i++) {
        value *v = &s->v[d->items[i]->slot];
        if (v_given(*v)) continue;
        int k = i - (d->n_items - d->n_defaults);
        if (k >= 0) {
            *v = j_eval(r, s, d->defaults[k]);
            continue;
        }
        builder b;
        j_sb_init(&b, r);
        j_sb_lit(&b, "parameter ");
        j_sb_repr(&b, v_str(d->items[i]->name));
        j_sb_lit(&b, " was not provided");
        *v = j_v_undefined_hint(r, j_sb_done(&b)->s);
    }
}

NOINLINE value j_call_macro(jrun *r, macro *m, const args *call)
{
    const node *d = m->def;
    jinja_enter(r);
    scope *s = scope_new(r, d->frame, m->parent);
    bind_arguments(r, d, s, call);
    builder text, *outer = r->out;
    j_sb_init(&text, r);
    r->out = &text;
    bind_defaults(r, d, s);
    exec_body(r, s, &d->body);
    r->out = outer;
    jinja_leave(r);
    return v_str(j_sb_done(&text));
}

static value macro_value(jrun *r, scope *s, const node *n)
{
    macro *m = jinja_alloc(r, 1, sizeof *m);
    *m = (macro){ n, s };
    return (value){ .type = V_MACRO, .u.mac = m };
}

static NOINLINE void exec_call_block(jrun *r, scope *s, const node *n)
{
    const node *c = n->a;
    value f = j_eval(r, s, c->a);
    args call;
    j_eval_args(r, s, c, &call, 1);
    kwarg *kw = jinja_alloc(r, (size_t)call.n_kw + 1, sizeof *kw);
    if (call.n_kw) memcpy(kw, call.kw, (size_t)call.n_kw * sizeof *kw);
    kw[call.n_kw++] = (kwarg){ j_str_lit(r, "caller"), macro_value(r, s, n) };
    call.kw = kw;
    r->line = c->line;
    j_sb_value(r->out, j_call_value(r, f, &call));
}

/* ---- statements ---------------------------------------------------------------------------- */

static NOINLINE flow exec_if(jrun *r, scope *s, const node *n)
{
    for (int i = 0; i < n->n_items; i++)
        if (j_truth(r, j_eval(r, s, n->items[i]))) return exec_body(r, s, &n->bodies[i]);
    return exec_body(r, s, &n->orelse);
}

static NOINLINE flow exec_for(jrun *r, scope *s, const node *n)
{
    value items = j_eval(r, s, n->b);
    r->line = n->line;
    if (!n->recursive) return run_loop(r, s, n, items, 0);
    // The text of a recursive loop comes at once, and its break and continue end inside.
    builder text, *outer = r->out;
    j_sb_init(&text, r);
    r->out = &text;
    run_loop(r, s, n, items, 0);
    r->out = outer;
    j_sb_str(r->out, j_sb_done(&text));
    return FLOW_NEXT;
}

static NOINLINE flow exec_set_block(jrun *r, scope *s, const node *n)
{
    scope *inner = scope_new(r, n->frame, s);
    str *text;
    flow f = capture(r, inner, &n->body, &text);
    if (f != FLOW_NEXT) return f;
    value v = v_str(text);
    if (n->b) v = j_eval_filter(r, inner, n->b, &v);
    assign(r, s, n->a, v);
    return FLOW_NEXT;
}

static NOINLINE flow exec_filter_block(jrun *r, scope *s, const node *n)
{
    scope *inner = scope_new(r, n->frame, s);
    str *text;
    flow f = capture(r, inner, &n->body, &text);
    if (f != FLOW_NEXT) return f;
    value v = v_str(text);
    j_sb_value(r->out, j_eval_filter(r, inner, n->b, &v));
    return FLOW_NEXT;
}

static NOINLINE flow exec_with(jrun *r, scope *s, const node *n)
{
    scope *inner = scope_new(r, n->frame, s);
    for (int i = 0; i < n->n_items; i += 2)
        assign(r, inner, n->items[i], j_eval(r, s, n->items[i + 1]));
    return exec_body(r, inner, &n->body);
}

/* What a block sees: the context, over it what the template's own level set (a scoped block: what
 * is set around it). */
static NOINLINE void exec_block(jrun *r, scope *s, const node *n)
{
    scope *inner = scope_new(r, n->frame, NULL);
    scope *from = n->flag ? s : r->root;
    for (int i = 0; i < n->frame->n; i++) {
        if (n->frame->sym[i].load != LOAD_RESOLVE) continue;
        bool found = false;
        for (scope *o = from; o && !found; o = o->parent) {
            for (int k = 0; k < o->frame->n && !found; k++) {
                found =
                    !j_str_cmp(o->frame->sym[k].name, n->frame->sym[i].name) && v_given(o->v[k]);
                if (found) inner->v[i] = o->v[k];
            }
        }
    }
    exec_body(r, inner, &n->body);
}

static NOINLINE void exec_output(jrun *r, scope *s, const node *n)
{
    for (int i = 0; i < n->n_items; i++)
        j_sb_value(r->out, j_eval(r, s, n->items[i]));
}

static NOINLINE void exec_set(jrun *r, scope *s, const node *n)
{
    check_namespaces(r, s, n->a);
    assign(r, s, n->a, j_eval(r, s, n->b));
}

static flow exec(jrun *r, scope *s, const node *n)
{
    flow f = FLOW_NEXT;
    jinja_enter(r);
    r->line = n->line;
    switch (n->kind) {
    case N_DATA: j_sb_str(r->out, n->konst.u.s); break;
    case N_OUTPUT: exec_output(r, s, n); break;
    case N_IF: f = exec_if(r, s, n); break;
    case N_FOR: f = exec_for(r, s, n); break;
    case N_SET: exec_set(r, s, n); break;
    case N_SETBLOCK: f = exec_set_block(r, s, n); break;
    case N_MACRO:
        assign(r, s, &(node){ .kind = N_NAME, .slot = n->slot, .up = n->up }, macro_value(r, s, n));
        break;
    case N_CALLBLOCK: exec_call_block(r, s, n); break;
    case N_FILTERBLOCK: f = exec_filter_block(r, s, n); break;
    case N_WITH: f = exec_with(r, s, n); break;
    case N_SCOPE: f = exec_body(r, scope_new(r, n->frame, s), &n->body); break;
    case N_BLOCK: exec_block(r, s, n); break;
    case N_BREAK: f = FLOW_BREAK; break;
    case N_CONTINUE: f = FLOW_CONTINUE; break;
    default: break;
    }
    jinja_leave(r);
    return f;
}

static flow exec_body(jrun *r, scope *s, const body *b)
{
    for (int i = 0; i < b->n; i++) {
        flow f = exec(r, s, b->v[i]);
        if (f != FLOW_NEXT) return f;
    }
    return FLOW_NEXT;
}

/* ---- compile and render -------------------------------------------------------------------- */

static infer_status failure(const jrun *r, infer_error *err)
{
    if (r->code == INFER_NOMEM || !r->line) return error_set(err, r->code, "%s", r->msg);
    return error_set(err, r->code, "line %d: %s", r->line, r->msg);
}

/* The run is the caller's, so that what it holds is defined after the jump. */
static NOINLINE infer_status compile(jrun *r, jinja_template *t, const char *text, size_t n,
                                     infer_error *err)
{
    jmp_buf handler;
    tokens toks = { 0 };
    r->handler = &handler;
    if (setjmp(handler)) return failure(r, err);
    jinja_lex(r, &toks, text, n);
    jinja_parse(r, &t->body, &toks);
    jinja_resolve(r, t);
    return error_clear(err);
}

infer_status jinja_compile(jinja_template **out, const char *text, size_t n, infer_error *err)
{
    *out = NULL;
    if (n > MAX_SOURCE)
        return error_set(err, INFER_LIMIT, "template: expected at most %d bytes, found %zu",
                         (int)MAX_SOURCE, n);
    if (!utf8_valid(text, n)) return error_set(err, INFER_FORMAT, "template: not valid UTF-8");
    jinja_template *t = mem_zero(1, sizeof *t);
    if (!t) return error_set(err, INFER_NOMEM, "out of memory");
    t->mem.limit = MAX_COMPILED;
    jrun r = { .mem = &t->mem, .max_steps = UINT64_MAX, .max_text = MAX_SOURCE };
    r.hash_seed = (uintptr_t)t;
    infer_status status = compile(&r, t, text, n, err);
    if (status)
        jinja_free(t);
    else
        *out = t;
    return status;
}

void jinja_free(jinja_template *t)
{
    if (!t) return;
    jinja_pool_free(&t->mem);
    mem_free(t);
}

static infer_status copy_out(jinja_text *out, const strbuf *b, infer_error *err)
{
    size_t n_ranges = 0;
    for (size_t i = 0; i < b->n; i++) {
        bool now = b->foreign ? b->foreign[i] : b->all_foreign;
        bool before = i && (b->foreign ? b->foreign[i - 1] : b->all_foreign);
        n_ranges += now && !before;
    }
    out->s = mem_alloc(b->n + 1, 1);
    out->foreign = mem_alloc(n_ranges + 1, sizeof *out->foreign);
    if (!out->s || !out->foreign) {
        jinja_text_free(out);
        return error_set(err, INFER_NOMEM, "out of memory");
    }
    if (b->n) memcpy(out->s, b->s, b->n);
    out->s[b->n] = 0;
    out->n = b->n;
    for (size_t i = 0; i < b->n; i++) {
        if (!(b->foreign ? b->foreign[i] : b->all_foreign)) continue;
        jinja_range *last = out->n_foreign ? &out->foreign[out->n_foreign - 1] : NULL;
        if (last && last->end == i)
            last->end++;
        else
            out->foreign[out->n_foreign++] = (jinja_range){ i, i + 1 };
    }
    return error_clear(err);
}

static NOINLINE infer_status render(jrun *r, builder *b, const jinja_template *t, json_t *context,
                                    infer_error *err)
{
    jmp_buf handler;
    r->handler = &handler;
    if (setjmp(handler)) return failure(r, err);
    r->context = jinja_from_json(r, context).u.d;
    j_sb_init(b, r);
    r->out = b;
    r->root = scope_new(r, t->root, NULL);
    exec_body(r, r->root, &t->body);
    return error_clear(err);
}

infer_status jinja_render(const jinja_template *t, jinja_text *out, json_t *context,
                          const jinja_options *o, infer_error *err)
{
    static const jinja_options defaults;
    *out = (jinja_text){ 0 };
    if (!o) o = &defaults;
    if (!json_is_object(context))
        return error_set(err, INFER_ARGUMENT, "template context: expected a JSON object");
    pool mem = { .limit = o->max_memory ? o->max_memory : (size_t)48 << 20 };
    jrun r = { .mem = &mem, .options = o };
    r.max_steps = o->max_steps ? o->max_steps : 5000000;
    r.max_text = o->max_output ? o->max_output : (size_t)16 << 20;
    r.hash_seed = (uintptr_t)context * 0x9e3779b97f4a7c15u ^ (uintptr_t)&r;
    builder b;
    infer_status status = render(&r, &b, t, context, err);
    if (!status) status = copy_out(out, b.b, err);
    jinja_pool_free(&mem);
    return status;
}

void jinja_text_free(jinja_text *text)
{
    mem_free(text->s);
    mem_free(text->foreign);
    *text = (jinja_text){ 0 };
}
