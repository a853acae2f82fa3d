/*
 * jinja_scope.c: names to slots, and the checks that need the whole tree.
 *
 * jinja2 decides from the text alone which region a name belongs to, and this file follows it: each
 * region (template, loop, macro, with, …) is first searched as a whole, without the regions inside
 * it, for the names it reads and sets. So "{% for … %}{{ x }}{% endfor %}{% set x = 1 %}" reads an
 * x that has no value yet, even if the context has one. A name that a region only reads belongs to
 * the outer region that knows it, or else comes from the context; a name it sets is its own,
 * beginning as a copy of the outer one. An `if` is no region, but a name that is set in one comes
 * from the context (or outside) where that branch is not taken.
 */
#include <stdio.h>
#include <string.h>

#include "models/jinja_impl.h"

typedef struct binding {
    struct binding *outer;
    frame *frame;
    int level, slot;
} binding;

typedef struct entry {
    binding *top; // innermost region that has the name
} entry;

typedef struct resolver {
    jrun *r;
    dict *names; // text → index of entries
    entry *entries;
    int n_entries;
    frame *frame;
    int level; // of `frame`; the outermost is 0
    int in_if; // depth of ifs while a region is searched
    bool soft; // unknown filters are an error only when they run
} resolver;

/* ---- symbols of a region ------------------------------------------------------------------- */

static entry *name_entry(resolver *v, str *name)
{
    value *found = j_dict_find(v->r, v->names, v_str(name));
    if (found) return &v->entries[found->u.i];
    int n = v->n_entries;
    if (!(n & (n - 1))) {
        entry *more = jinja_alloc(v->r, n ? 2 * (size_t)n : 1, sizeof *more);
        if (n) memcpy(more, v->entries, (size_t)n * sizeof *more);
        v->entries = more;
    }
    j_dict_set(v->r, v->names, v_str(name), v_int(n));
    v->n_entries++;
    v->entries[n] = (entry){ 0 };
    return &v->entries[n];
}

static int define(resolver *v, str *name, load_kind load)
{
    entry *e = name_entry(v, name);
    frame *f = v->frame;
    binding *b = e->top;
    if (b && b->frame == f) {
        if (load == LOAD_PARAM) f->sym[b->slot].load = LOAD_PARAM;
        return b->slot;
    }
    if (f->n == f->cap) {
        int cap = f->cap ? 2 * f->cap : 8;
        symbol *more = jinja_alloc(v->r, (size_t)cap, sizeof *more);
        if (f->n) memcpy(more, f->sym, (size_t)f->n * sizeof *more);
        f->sym = more;
        f->cap = cap;
    }
    symbol *s = &f->sym[f->n];
    *s = (symbol){ .name = name, .load = load };
    if (load == LOAD_ALIAS) {
        s->up = v->level - b->level;
        s->slot = b->slot;
    }
    b = jinja_alloc(v->r, 1, sizeof *b);
    *b = (binding){ .outer = e->top, .frame = f, .level = v->level, .slot = f->n };
    e->top = b;
    return f->n++;
}

static void load(resolver *v, str *name)
{
    if (!name_entry(v, name)->top) define(v, name, LOAD_RESOLVE);
}

static void store(resolver *v, str *name)
{
    binding *b = name_entry(v, name)->top;
    if (b && b->frame == v->frame) return;
    define(v, name, b ? LOAD_ALIAS : v->in_if ? LOAD_RESOLVE : LOAD_NOTHING);
}

static void store_target(resolver *v, const node *n, bool param)
{
    if (n->kind == N_TUPLE) {
        for (int i = 0; i < n->n_items; i++)
            store_target(v, n->items[i], param);
    } else if (n->kind == N_NSREF) {
        load(v, n->name);
    } else if (param) {
        define(v, n->name, LOAD_PARAM);
    } else {
        store(v, n->name);
    }
}

static void search(resolver *v, const node *n);

static void search_list(resolver *v, node *const *nodes, int n)
{
    for (int i = 0; i < n; i++)
        search(v, nodes[i]);
}

static void search_body(resolver *v, const body *b) { search_list(v, b->v, b->n); }

/* What belongs to the current region in n. */
static void search(resolver *v, const node *n)
{
    if (!n) return;
    switch (n->kind) {
    case N_NAME:
    case N_NSREF: load(v, n->name); return;
    case N_IF:
        for (int i = 0; i < n->n_items; i++) {
            search(v, n->items[i]);
            v->in_if++;
            search_body(v, &n->bodies[i]);
            v->in_if--;
        }
        v->in_if++;
        search_body(v, &n->orelse);
        v->in_if--;
        return;
    case N_SET:
        search(v, n->b);
        store_target(v, n->a, false);
        return;
    case N_SETBLOCK: store_target(v, n->a, false); return;
    case N_FOR: search(v, n->b); return;
    case N_MACRO: store(v, n->name); return;
    case N_CALLBLOCK: search(v, n->a); return;
    case N_FILTERBLOCK: search(v, n->b); return;
    case N_WITH:
        for (int i = 1; i < n->n_items; i += 2)
            search(v, n->items[i]);
        return;
    case N_SCOPE:
    case N_BLOCK: return;
    default: break;
    }
    search(v, n->a);
    search(v, n->b);
    search(v, n->c);
    search_list(v, n->items, n->n_items);
    for (int i = 0; i < n->n_kw; i++)
        search(v, n->kw[i].v);
}

/* ---- names used anywhere inside, regions within included ----------------------------------- */

typedef struct usage {
    const char *name;
    bool settled, used; // the first mention decides: read (used) or set (not)
    int stored_line;    // where it is a target of for or set; 0: nowhere
} usage;

static void use(usage *u, const node *n);

static void use_list(usage *u, node *const *nodes, int n)
{
    for (int i = 0; i < n; i++)
        use(u, nodes[i]);
}

static void use_name(usage *u, const str *name, bool read)
{
    if (u->settled || !j_str_is(name, u->name)) return;
    u->settled = true;
    u->used = read;
}

static void use_target(usage *u, const node *n, bool param)
{
    if (n->kind == N_TUPLE) {
        for (int i = 0; i < n->n_items; i++)
            use_target(u, n->items[i], param);
    } else if (n->kind == N_NAME) {
        use_name(u, n->name, false);
        if (!param && !u->stored_line && j_str_is(n->name, u->name)) u->stored_line = n->line;
    }
}

static void use(usage *u, const node *n)
{
    if (!n || n->kind == N_BLOCK) return;
    bool target = n->kind == N_FOR || n->kind == N_SET || n->kind == N_SETBLOCK;
    if (n->kind == N_NAME) use_name(u, n->name, true);
    if (target)
        use_target(u, n->a, false);
    else
        use(u, n->a);
    if (n->kind == N_WITH) {
        for (int i = 0; i < n->n_items; i += 2)
            use_target(u, n->items[i], true);
        for (int i = 1; i < n->n_items; i += 2)
            use(u, n->items[i]);
    } else if (n->kind == N_MACRO || n->kind == N_CALLBLOCK) {
        for (int i = 0; i < n->n_items; i++)
            use_target(u, n->items[i], true);
    } else if (n->kind == N_IF) {
        for (int i = 0; i < n->n_items; i++) {
            use(u, n->items[i]);
            use_list(u, n->bodies[i].v, n->bodies[i].n);
        }
    } else {
        use_list(u, n->items, n->n_items);
    }
    use_list(u, n->defaults, n->n_defaults);
    for (int i = 0; i < n->n_kw; i++)
        use(u, n->kw[i].v);
    use(u, n->b);
    use_list(u, n->body.v, n->body.n);
    use_list(u, n->orelse.v, n->orelse.n);
    use(u, n->c);
}

static bool body_uses(const body *b, const char *name)
{
    usage u = { .name = name };
    use_list(&u, b->v, b->n);
    return u.used;
}

/* ---- resolving ----------------------------------------------------------------------------- */

static void walk(resolver *v, node *n);
static void walk_body(resolver *v, body *b);

typedef struct outer_state {
    frame *frame;
    int level;
    bool soft;
} outer_state;

static outer_state enter(resolver *v, frame **out)
{
    outer_state old = { v->frame, v->level, v->soft };
    frame *f = jinja_alloc(v->r, 1, sizeof *f);
    f->parent = v->frame;
    if (f->parent) v->level++;
    v->frame = *out = f;
    v->soft = false;
    return old;
}

static void leave(resolver *v, outer_state old)
{
    for (int i = 0; i < v->frame->n; i++) {
        entry *e = name_entry(v, v->frame->sym[i].name);
        e->top = e->top->outer;
    }
    v->frame = old.frame;
    v->level = old.level;
    v->soft = old.soft;
}

static void bind(resolver *v, node *n)
{
    binding *b = name_entry(v, n->name)->top;
    if (!b) {
        load(v, n->name);
        b = name_entry(v, n->name)->top;
    }
    n->up = v->level - b->level;
    n->slot = b->slot;
}

static void bind_target(resolver *v, node *n)
{
    if (n->kind == N_TUPLE)
        for (int i = 0; i < n->n_items; i++)
            bind_target(v, n->items[i]);
    else
        bind(v, n);
}

static void walk_for(resolver *v, node *n)
{
    usage u = { .name = "loop" };
    use(&u, n);
    if (u.stored_line) {
        v->r->line = u.stored_line;
        jinja_fail(v->r, INFER_FORMAT, "Can't assign to special loop variable in for-loop target");
    }
    walk(v, n->b);
    n->extended = n->recursive || body_uses(&n->body, "loop");
    outer_state old;
    if (n->c) {
        old = enter(v, &n->frame_test);
        store_target(v, n->a, true);
        search(v, n->c);
        bind_target(v, n->a);
        walk(v, n->c);
        leave(v, old);
    }
    old = enter(v, &n->frame);
    store_target(v, n->a, true); // first in both regions, so its slots are the same in both
    if (n->extended) n->slot_loop = define(v, j_str_lit(v->r, "loop"), LOAD_PARAM);
    search_body(v, &n->body);
    bind_target(v, n->a);
    walk_body(v, &n->body);
    leave(v, old);
    if (!n->flag) return;
    old = enter(v, &n->frame_else);
    search_body(v, &n->orelse);
    walk_body(v, &n->orelse);
    leave(v, old);
}

static int special(resolver *v, node *n, const char *name, bool *uses)
{
    *uses = body_uses(&n->body, name);
    for (int i = 0; i < n->n_items; i++) {
        if (!j_str_is(n->items[i]->name, name)) continue;
        if (*uses && !strcmp(name, "caller") && i < n->n_items - n->n_defaults) {
            v->r->line = n->line;
            jinja_fail(v->r, INFER_FORMAT,
                       "When defining macros or call blocks the special \"caller\""
                       " argument must be omitted or be given a default.");
        }
        if (strcmp(name, "caller")) *uses = false; // an ordinary parameter
        return n->items[i]->slot;
    }
    return *uses ? define(v, j_str_lit(v->r, name), LOAD_PARAM) : -1;
}

static void walk_macro(resolver *v, node *n)
{
    outer_state old = enter(v, &n->frame);
    for (int i = 0; i < n->n_items; i++)
        store_target(v, n->items[i], true);
    search_list(v, n->defaults, n->n_defaults);
    for (int i = 0; i < n->n_items; i++)
        bind(v, n->items[i]);
    // Before the body is searched: reading them must not make them names of the context.
    n->slot_caller = special(v, n, "caller", &n->uses_caller);
    n->slot_kwargs = special(v, n, "kwargs", &n->uses_kwargs);
    n->slot_varargs = special(v, n, "varargs", &n->uses_varargs);
    search_body(v, &n->body);
    for (int i = 0; i < n->n_defaults; i++)
        walk(v, n->defaults[i]);
    walk_body(v, &n->body);
    leave(v, old);
}

/* A block sees the context and what the template's own level has set, nothing of the regions around
 * it, so it is resolved on its own. */
static void walk_block(resolver *v, node *n)
{
    resolver alone = { .r = v->r, .names = j_dict_new(v->r) };
    outer_state old = enter(&alone, &n->frame);
    search_body(&alone, &n->body);
    walk_body(&alone, &n->body);
    leave(&alone, old);
}

static void check_callable(resolver *v, const node *n)
{
    if (n->fn || v->soft) return;
    v->r->line = n->line;
    jinja_fail(v->r, INFER_FORMAT, "No %s named '%.*s'.", n->kind == N_FILTER ? "filter" : "test",
               (int)(n->name->n > 80 ? 80 : n->name->n), n->name->s);
}

static void walk_simple_region(resolver *v, node *n)
{
    outer_state old = enter(v, &n->frame);
    if (n->kind == N_WITH)
        for (int i = 0; i < n->n_items; i += 2)
            store_target(v, n->items[i], true);
    if (n->kind == N_SETBLOCK || n->kind == N_FILTERBLOCK) search(v, n->b);
    search_body(v, &n->body);
    if (n->kind == N_WITH)
        for (int i = 0; i < n->n_items; i += 2)
            bind_target(v, n->items[i]);
    if (n->kind == N_SETBLOCK || n->kind == N_FILTERBLOCK) walk(v, n->b);
    walk_body(v, &n->body);
    leave(v, old);
}

static void walk(resolver *v, node *n)
{
    if (!n) return;
    bool soft = v->soft;
    switch (n->kind) {
    case N_NAME:
    case N_NSREF: bind(v, n); return;
    case N_IF:
        v->soft = true;
        for (int i = 0; i < n->n_items; i++) {
            walk(v, n->items[i]);
            walk_body(v, &n->bodies[i]);
        }
        walk_body(v, &n->orelse);
        v->soft = soft;
        return;
    case N_FOR: walk_for(v, n); return;
    case N_MACRO:
        bind(v, n);
        walk_macro(v, n);
        return;
    case N_CALLBLOCK:
        walk(v, n->a);
        walk_macro(v, n);
        return;
    case N_SET:
        walk(v, n->b);
        bind_target(v, n->a);
        return;
    case N_SETBLOCK:
        bind_target(v, n->a);
        walk_simple_region(v, n);
        return;
    case N_WITH:
        for (int i = 1; i < n->n_items; i += 2)
            walk(v, n->items[i]);
        walk_simple_region(v, n);
        return;
    case N_FILTERBLOCK:
    case N_SCOPE: walk_simple_region(v, n); return;
    case N_BLOCK: walk_block(v, n); return;
    case N_FILTER:
    case N_TEST: check_callable(v, n); break;
    case N_COND: v->soft = true; break;
    default: break;
    }
    walk(v, n->a);
    walk(v, n->b);
    walk(v, n->c);
    for (int i = 0; i < n->n_items; i++)
        walk(v, n->items[i]);
    for (int i = 0; i < n->n_kw; i++)
        walk(v, n->kw[i].v);
    v->soft = soft;
}

static void walk_body(resolver *v, body *b)
{
    for (int i = 0; i < b->n; i++)
        walk(v, b->v[i]);
}

/* break and continue need a loop of the same macro or block around them, blocks their own names. */
static void check_flow(jrun *r, const body *b, bool in_loop, dict *blocks)
{
    for (int i = 0; i < b->n; i++) {
        const node *n = b->v[i];
        if ((n->kind == N_BREAK || n->kind == N_CONTINUE) && !in_loop) {
            r->line = n->line;
            jinja_fail(r, INFER_FORMAT,
                       n->kind == N_BREAK ? "'break' outside loop"
                                          : "'continue' not properly in loop");
        }
        if (n->kind == N_BLOCK) {
            r->line = n->line;
            if (j_dict_find(r, blocks, v_str(n->name)))
                jinja_fail(r, INFER_FORMAT, "block '%.*s' defined twice", (int)n->name->n,
                           n->name->s);
            j_dict_set(r, blocks, v_str(n->name), v_none());
        }
        bool own = n->kind == N_MACRO || n->kind == N_CALLBLOCK || n->kind == N_BLOCK;
        check_flow(r, &n->body, n->kind == N_FOR || (in_loop && !own), blocks);
        check_flow(r, &n->orelse, in_loop && !(n->kind == N_FOR && n->recursive), blocks);
        for (int k = 0; n->kind == N_IF && k < n->n_items; k++)
            check_flow(r, &n->bodies[k], in_loop, blocks);
    }
}

void jinja_resolve(jrun *r, jinja_template *t)
{
    resolver v = { .r = r, .names = j_dict_new(r) };
    check_flow(r, &t->body, false, j_dict_new(r));
    enter(&v, &t->root);
    search_body(&v, &t->body);
    walk_body(&v, &t->body);
}
