/*
 * jinja_parse.c: tokens to tree, by recursive descent with jinja2's grammar and precedences:
 *   if-else < or < and < not < comparisons and in < + - < ~ < * / // % < ** < unary, then postfix
 *   (attributes, subscripts, calls), filters and tests, which bind tightest.
 * Chains of one precedence are one node with many operands, so that long ones are not deep.
 */
#include <stdio.h>
#include <string.h>

#include "models/jinja_impl.h"

typedef struct parser {
    jrun *r;
    const token *t;                 // the current one; the last is T_EOF
    const char *tags[MAX_TREE + 8]; // open tags, for messages
    const char *ends[MAX_TREE + 8]; // what each looks for: "'elif' or 'else' or 'endif'"
    int n_tags, n_ends;
    int depth;
} parser;

static node *parse_expr(parser *p);
static node *parse_or(parser *p);
static node *parse_tuple(parser *p, bool with_cond, const char *end, bool parens);
static node *parse_primary(parser *p, bool targets);
static node *parse_postfix(parser *p, node *n);
static void parse_body(parser *p, body *out, const char *const *ends);

/* ---- helpers ------------------------------------------------------------------------------- */

static _Noreturn void fail_at(parser *p, int line, const char *what)
{
    p->r->line = line;
    jinja_fail(p->r, INFER_FORMAT, "%s", what);
}

static const char *describe(parser *p, const token *t)
{
    return t->type == T_NAME ? j_str_new(p->r, t->v.u.s->s, t->v.u.s->n)->s : j_token_name(t->type);
}

static _Noreturn void fail_token(parser *p, const char *expected)
{
    char msg[300];
    if (p->t->type == T_EOF)
        snprintf(msg, sizeof msg, "unexpected end of template, expected '%s'.", expected);
    else
        snprintf(msg, sizeof msg, "expected token '%s', got '%s'", expected, describe(p, p->t));
    fail_at(p, p->t->line, msg);
}

static bool is_name(const token *t, const char *name)
{
    return t->type == T_NAME && j_str_is(t->v.u.s, name);
}

static const token *readable(parser *p, const token *t)
{
    if (t->type == T_ERROR) fail_at(p, t->line, t->v.u.s->s);
    return t;
}

static const token *next(parser *p)
{
    const token *t = p->t;
    if (t->type != T_EOF) p->t = readable(p, t + 1);
    return t;
}

static const token *look(parser *p) { return p->t->type == T_EOF ? p->t : readable(p, p->t + 1); }

static bool skip(parser *p, token_type type)
{
    if (p->t->type != type) return false;
    next(p);
    return true;
}

static bool skip_name(parser *p, const char *name)
{
    if (!is_name(p->t, name)) return false;
    next(p);
    return true;
}

static const token *expect(parser *p, token_type type)
{
    if (p->t->type != type) fail_token(p, j_token_name(type));
    return next(p);
}

static void expect_name(parser *p, const char *name)
{
    if (!skip_name(p, name)) fail_token(p, name);
}

static void deeper(parser *p)
{
    p->r->line = p->t->line;
    if (++p->depth > MAX_TREE)
        jinja_fail(p->r, INFER_LIMIT, "the template nests deeper than %d levels", MAX_TREE);
}

static node *node_new(parser *p, node_kind kind, int line)
{
    node *n = jinja_alloc(p->r, 1, sizeof *n);
    n->kind = kind;
    n->line = line;
    n->depth = 1;
    return n;
}

/* Sets a child, keeping the depth. */
static void child(parser *p, node *n, node **slot, node *c)
{
    *slot = c;
    if (!c || c->depth < n->depth) return;
    n->depth = c->depth + 1;
    p->r->line = n->line;
    if (n->depth > MAX_TREE)
        jinja_fail(p->r, INFER_LIMIT, "the template nests deeper than %d levels", MAX_TREE);
}

/* Room in an array that grows by doubling: a power of two, or none, is full. */
static void *grown(jrun *r, void *old, int n, size_t size)
{
    if (n & (n - 1)) return old;
    void *more = jinja_alloc(r, n ? 2 * (size_t)n : 1, size);
    if (n) memcpy(more, old, (size_t)n * size);
    return more;
}

static void add_item(parser *p, node *n, node *c)
{
    n->items = grown(p->r, n->items, n->n_items, sizeof *n->items);
    child(p, n, &n->items[n->n_items++], c);
}

static void add_op(parser *p, node *n, op o)
{
    int at = n->n_items - 1;
    n->ops = grown(p->r, n->ops, at, 1);
    n->ops[at] = (uint8_t)o;
}

static void add_body(parser *p, body *b, node *n)
{
    b->v = grown(p->r, b->v, b->n, sizeof *b->v);
    b->v[b->n++] = n;
}

/* ---- expressions --------------------------------------------------------------------------- */

static bool is_tuple_end(parser *p, const char *end)
{
    token_type t = p->t->type;
    return t == T_VARIABLE_END || t == T_BLOCK_END || t == T_RPAREN || (end && is_name(p->t, end));
}

/* An expression, or a tuple of several; `end` is a name that ends it. */
static node *parse_tuple(parser *p, bool with_cond, const char *end, bool parens)
{
    int line = p->t->line;
    node *tuple = NULL, *first = NULL;
    while (true) {
        if (is_tuple_end(p, end)) break;
        node *n = with_cond ? parse_expr(p) : parse_or(p);
        if (!first) first = n;
        if (tuple) add_item(p, tuple, n);
        if (p->t->type != T_COMMA) break;
        if (!tuple) {
            tuple = node_new(p, N_TUPLE, line);
            add_item(p, tuple, first);
        }
        next(p);
    }
    if (tuple) return tuple;
    if (first) return first;
    if (!parens) {
        char msg[300];
        snprintf(msg, sizeof msg, "Expected an expression, got '%s'", describe(p, p->t));
        fail_at(p, p->t->line, msg);
    }
    return node_new(p, N_TUPLE, line);
}

static node *parse_list(parser *p)
{
    node *n = node_new(p, N_LIST, expect(p, T_LBRACKET)->line);
    while (p->t->type != T_RBRACKET) {
        if (n->n_items) expect(p, T_COMMA);
        if (p->t->type == T_RBRACKET) break;
        add_item(p, n, parse_expr(p));
    }
    next(p);
    return n;
}

static node *parse_dict(parser *p)
{
    node *n = node_new(p, N_DICT, expect(p, T_LBRACE)->line);
    while (p->t->type != T_RBRACE) {
        if (n->n_items) expect(p, T_COMMA);
        if (p->t->type == T_RBRACE) break;
        add_item(p, n, parse_expr(p));
        expect(p, T_COLON);
        add_item(p, n, parse_expr(p));
    }
    next(p);
    return n;
}

static node *parse_name(parser *p, bool targets)
{
    const token *t = next(p);
    str *name = t->v.u.s;
    bool yes = j_str_is(name, "true") || j_str_is(name, "True");
    if (yes || j_str_is(name, "false") || j_str_is(name, "False")) {
        node *n = node_new(p, N_CONST, t->line);
        n->konst = v_bool(yes);
        return n;
    }
    if (j_str_is(name, "none") || j_str_is(name, "None")) {
        node *n = node_new(p, N_CONST, t->line);
        n->konst = v_none();
        return n;
    }
    if (targets && skip(p, T_DOT)) {
        node *n = node_new(p, N_NSREF, t->line);
        n->name = name;
        n->attr = expect(p, T_NAME)->v.u.s;
        return n;
    }
    node *n = node_new(p, N_NAME, t->line);
    n->name = name;
    return n;
}

static node *parse_strings(parser *p)
{
    node *n = node_new(p, N_CONST, p->t->line);
    str *s = next(p)->v.u.s;
    if (p->t->type == T_STRING) {
        builder b;
        j_sb_init(&b, p->r);
        j_sb_str(&b, s);
        while (p->t->type == T_STRING)
            j_sb_str(&b, next(p)->v.u.s);
        s = j_sb_done(&b);
        s->buf = NULL;
        jinja_len(p->r, s);
    }
    n->konst = v_str(s);
    return n;
}

static node *parse_primary(parser *p, bool targets)
{
    node *n;
    switch (p->t->type) {
    case T_NAME: return parse_name(p, targets);
    case T_STRING: return parse_strings(p);
    case T_INTEGER:
    case T_FLOAT:
        n = node_new(p, N_CONST, p->t->line);
        n->konst = next(p)->v;
        return n;
    case T_LPAREN:
        next(p);
        n = parse_tuple(p, true, NULL, true);
        expect(p, T_RPAREN);
        return n;
    case T_LBRACKET: return parse_list(p);
    case T_LBRACE: return parse_dict(p);
    default: {
        char msg[300];
        snprintf(msg, sizeof msg, "unexpected '%s'", describe(p, p->t));
        fail_at(p, p->t->line, msg);
    }
    }
}

/* One part of a subscript: an expression or a slice. */
static node *parse_subscribed(parser *p)
{
    int line = p->t->line;
    node *start = NULL;
    if (p->t->type != T_COLON) {
        start = parse_expr(p);
        if (p->t->type != T_COLON) return start;
    }
    next(p);
    node *n = node_new(p, N_SLICE, line);
    child(p, n, &n->a, start);
    token_type t = p->t->type;
    if (t != T_COLON && t != T_RBRACKET && t != T_COMMA) child(p, n, &n->b, parse_expr(p));
    if (skip(p, T_COLON) && p->t->type != T_RBRACKET && p->t->type != T_COMMA)
        child(p, n, &n->c, parse_expr(p));
    return n;
}

static node *parse_subscript(parser *p, node *of)
{
    const token *t = next(p);
    if (t->type == T_DOT) {
        const token *name = next(p);
        node *n = node_new(p, name->type == T_NAME ? N_ATTR : N_ITEM, t->line);
        child(p, n, &n->a, of);
        if (name->type == T_NAME) {
            n->attr = name->v.u.s;
            return n;
        }
        if (name->type != T_INTEGER) fail_at(p, name->line, "expected name or number");
        node *index = node_new(p, N_CONST, name->line);
        index->konst = name->v;
        child(p, n, &n->b, index);
        return n;
    }
    node *n = node_new(p, N_ITEM, t->line), *key = NULL, *tuple = NULL;
    child(p, n, &n->a, of);
    int parts = 0;
    while (p->t->type != T_RBRACKET) {
        if (parts) expect(p, T_COMMA);
        node *part = parse_subscribed(p);
        if (++parts == 1) {
            key = part;
            continue;
        }
        if (!tuple) {
            tuple = node_new(p, N_TUPLE, t->line);
            add_item(p, tuple, key);
        }
        add_item(p, tuple, part);
    }
    next(p);
    if (!parts) tuple = node_new(p, N_TUPLE, t->line);
    child(p, n, &n->b, tuple ? tuple : key);
    return n;
}

static void add_kwarg(parser *p, node *n, str *name, node *v)
{
    for (int i = 0; i < n->n_kw; i++) {
        if (j_str_cmp(n->kw[i].name, name)) continue;
        char msg[200];
        snprintf(msg, sizeof msg, "keyword argument repeated: %.*s", (int)name->n, name->s);
        fail_at(p, v->line, msg);
    }
    if (n->n_kw >= 255) fail_at(p, v->line, "too many keyword arguments");
    n->kw = grown(p->r, n->kw, n->n_kw, sizeof *n->kw);
    n->kw[n->n_kw].name = name;
    child(p, n, &n->kw[n->n_kw++].v, v);
}

/* "(…)" into items, kw, b (*args) and c (**kwargs). */
static void parse_call_args(parser *p, node *n)
{
    int line = expect(p, T_LPAREN)->line;
    bool comma = false;
    while (p->t->type != T_RPAREN) {
        if (comma) {
            expect(p, T_COMMA);
            if (p->t->type == T_RPAREN) break;
        }
        bool ok;
        if (skip(p, T_MUL)) {
            ok = !n->b && !n->c;
            child(p, n, &n->b, parse_expr(p));
        } else if (skip(p, T_POW)) {
            ok = !n->c;
            child(p, n, &n->c, parse_expr(p));
        } else if (p->t->type == T_NAME && look(p)->type == T_ASSIGN) {
            ok = !n->c;
            str *name = next(p)->v.u.s;
            next(p);
            add_kwarg(p, n, name, parse_expr(p));
        } else {
            ok = !n->b && !n->c && !n->n_kw;
            add_item(p, n, parse_expr(p));
        }
        if (!ok) fail_at(p, line, "invalid syntax for function call expression");
        comma = true;
    }
    next(p);
}

static node *parse_call(parser *p, node *f)
{
    node *n = node_new(p, N_CALL, p->t->line);
    child(p, n, &n->a, f);
    parse_call_args(p, n);
    return n;
}

static node *parse_postfix(parser *p, node *n)
{
    while (true) {
        if (p->t->type == T_DOT || p->t->type == T_LBRACKET)
            n = parse_subscript(p, n);
        else if (p->t->type == T_LPAREN)
            n = parse_call(p, n);
        else
            return n;
    }
}

static str *parse_dotted(parser *p)
{
    str *name = expect(p, T_NAME)->v.u.s;
    while (skip(p, T_DOT)) {
        builder b;
        j_sb_init(&b, p->r);
        j_sb_str(&b, name);
        j_sb_lit(&b, ".");
        j_sb_str(&b, expect(p, T_NAME)->v.u.s);
        name = j_sb_done(&b);
    }
    return name;
}

/* "|name(…)…", the first without its "|" where inline_first. */
static node *parse_filter(parser *p, node *of, bool inline_first)
{
    while (p->t->type == T_PIPE || inline_first) {
        if (!inline_first) next(p);
        node *n = node_new(p, N_FILTER, p->t->line);
        child(p, n, &n->a, of);
        n->name = parse_dotted(p);
        n->fn = j_find_filter(n->name);
        if (p->t->type == T_LPAREN) parse_call_args(p, n);
        of = n;
        inline_first = false;
    }
    return of;
}

static node *parse_test(parser *p, node *of)
{
    int line = next(p)->line;
    bool negated = skip_name(p, "not");
    node *n = node_new(p, N_TEST, line);
    child(p, n, &n->a, of);
    n->name = parse_dotted(p);
    n->fn = j_find_test(n->name);
    token_type t = p->t->type;
    if (t == T_LPAREN) {
        parse_call_args(p, n);
    } else if ((t == T_NAME && !is_name(p->t, "else") && !is_name(p->t, "or") &&
                !is_name(p->t, "and")) ||
               t == T_STRING || t == T_INTEGER || t == T_FLOAT || t == T_LBRACKET ||
               t == T_LBRACE) {
        if (is_name(p->t, "is")) fail_at(p, p->t->line, "You cannot chain multiple tests with is");
        add_item(p, n, parse_postfix(p, parse_primary(p, false)));
    }
    if (!negated) return n;
    node *not = node_new(p, N_NOT, line);
    child(p, not, &not ->a, n);
    return not ;
}

static node *parse_unary(parser *p, bool with_filter)
{
    deeper(p);
    node *n;
    token_type t = p->t->type;
    if (t == T_SUB || t == T_ADD) {
        n = node_new(p, t == T_SUB ? N_NEG : N_POS, next(p)->line);
        child(p, n, &n->a, parse_unary(p, false));
    } else {
        n = parse_primary(p, false);
    }
    n = parse_postfix(p, n);
    while (with_filter) {
        if (p->t->type == T_PIPE)
            n = parse_filter(p, n, false);
        else if (is_name(p->t, "is"))
            n = parse_test(p, n);
        else if (p->t->type == T_LPAREN)
            n = parse_call(p, n);
        else
            break;
    }
    p->depth--;
    return n;
}

enum {
    LEVEL_OR,
    LEVEL_AND,
    LEVEL_NOT,
    LEVEL_COMPARE,
    LEVEL_ADD,
    LEVEL_CONCAT,
    LEVEL_MUL,
    LEVEL_POW
};

/* The binary operator at the current token: its level, or -1. */
static int operator_at(parser *p, op *o, node_kind *kind)
{
    *kind = N_CHAIN;
    switch (p->t->type) {
    case T_ADD: *o = OP_ADD; return LEVEL_ADD;
    case T_SUB: *o = OP_SUB; return LEVEL_ADD;
    case T_MUL: *o = OP_MUL; return LEVEL_MUL;
    case T_DIV: *o = OP_DIV; return LEVEL_MUL;
    case T_FLOORDIV: *o = OP_FLOORDIV; return LEVEL_MUL;
    case T_MOD: *o = OP_MOD; return LEVEL_MUL;
    case T_POW: *o = OP_POW; return LEVEL_POW;
    case T_TILDE: *kind = N_CONCAT; return LEVEL_CONCAT;
    default: break;
    }
    *kind = N_COMPARE;
    switch (p->t->type) {
    case T_EQ: *o = OP_EQ; return LEVEL_COMPARE;
    case T_NE: *o = OP_NE; return LEVEL_COMPARE;
    case T_LT: *o = OP_LT; return LEVEL_COMPARE;
    case T_LTEQ: *o = OP_LE; return LEVEL_COMPARE;
    case T_GT: *o = OP_GT; return LEVEL_COMPARE;
    case T_GTEQ: *o = OP_GE; return LEVEL_COMPARE;
    case T_NAME: break;
    default: return -1;
    }
    if (is_name(p->t, "in")) {
        *o = OP_IN;
        return LEVEL_COMPARE;
    }
    if (is_name(p->t, "not") && is_name(look(p), "in")) {
        *o = OP_NOTIN;
        return LEVEL_COMPARE;
    }
    *kind = N_AND;
    if (is_name(p->t, "and")) return LEVEL_AND;
    *kind = N_OR;
    return is_name(p->t, "or") ? LEVEL_OR : -1;
}

/* Operators of `level` and tighter. */
static node *parse_level(parser *p, int level)
{
    int line = p->t->line;
    node *left;
    int tightest = LEVEL_POW; // what may still follow binds at most as tight as what was read
    if (level <= LEVEL_NOT && is_name(p->t, "not")) {
        deeper(p);
        next(p);
        left = node_new(p, N_NOT, line);
        child(p, left, &left->a, parse_level(p, LEVEL_NOT));
        tightest = LEVEL_AND;
        p->depth--;
    } else {
        left = parse_unary(p, true);
    }
    while (true) {
        op o = OP_ADD;
        node_kind kind;
        int l = operator_at(p, &o, &kind);
        if (l < level || l > tightest) return left;
        node *chain = node_new(p, kind, line);
        add_item(p, chain, left);
        for (int again = l; again == l;) {
            if (kind == N_CHAIN || kind == N_COMPARE) add_op(p, chain, o);
            if (next(p)->type == T_NAME && o == OP_NOTIN && kind == N_COMPARE) next(p);
            add_item(p, chain, parse_level(p, l + 1));
            node_kind k;
            again = operator_at(p, &o, &k);
        }
        left = chain;
        tightest = l;
    }
}

static node *parse_or(parser *p) { return parse_level(p, LEVEL_OR); }

static node *parse_expr(parser *p)
{
    int line = p->t->line;
    node *n = parse_or(p);
    while (skip_name(p, "if")) {
        node *cond = node_new(p, N_COND, line);
        child(p, cond, &cond->a, n);
        child(p, cond, &cond->b, parse_or(p));
        if (skip_name(p, "else")) {
            deeper(p);
            child(p, cond, &cond->c, parse_expr(p));
            p->depth--;
        }
        n = cond;
        line = p->t->line;
    }
    return n;
}

/* ---- statements ---------------------------------------------------------------------------- */

static void check_target(parser *p, const node *n, int depth)
{
    if (n->kind == N_NAME || n->kind == N_NSREF) return;
    if (n->kind == N_TUPLE && depth < MAX_TREE) {
        for (int i = 0; i < n->n_items; i++)
            check_target(p, n->items[i], depth + 1);
        return;
    }
    fail_at(p, n->line, n->kind == N_CONST ? "can't assign to 'const'" : "can't assign to this");
}

static node *parse_target(parser *p, bool namespaces, const char *end)
{
    int line = p->t->line;
    node *tuple = NULL, *first = NULL;
    while (!is_tuple_end(p, end)) {
        deeper(p);
        node *n = parse_primary(p, namespaces);
        p->depth--;
        if (!first) first = n;
        if (tuple) add_item(p, tuple, n);
        if (p->t->type != T_COMMA) break;
        if (!tuple) {
            tuple = node_new(p, N_TUPLE, line);
            add_item(p, tuple, first);
        }
        next(p);
    }
    if (!first) {
        char msg[300];
        snprintf(msg, sizeof msg, "Expected an expression, got '%s'", describe(p, p->t));
        fail_at(p, p->t->line, msg);
    }
    node *n = tuple ? tuple : first;
    check_target(p, n, 0);
    return n;
}

static node *parse_name_target(parser *p)
{
    const token *t = expect(p, T_NAME);
    static const char *const reserved[] = { "true", "false", "none", "True", "False", "None" };
    for (int i = 0; i < COUNT_OF(reserved); i++)
        if (j_str_is(t->v.u.s, reserved[i])) fail_at(p, t->line, "can't assign to 'name'");
    node *n = node_new(p, N_NAME, t->line);
    n->name = t->v.u.s;
    return n;
}

static bool at_end(const parser *p, const char *const *ends)
{
    for (int i = 0; ends && ends[i]; i++)
        if (is_name(p->t, ends[i])) return true;
    return false;
}

static _Noreturn void fail_tags(parser *p, const char *unknown, int line)
{
    char msg[700];
    int n = unknown ? snprintf(msg, sizeof msg, "Encountered unknown tag '%.60s'.", unknown)
                    : snprintf(msg, sizeof msg, "Unexpected end of template.");
    if (p->n_ends) {
        bool nested = false;
        char quoted[80];
        snprintf(quoted, sizeof quoted, "'%.60s'", unknown ? unknown : "");
        for (int i = 0; i < p->n_ends && unknown; i++)
            nested |= strstr(p->ends[i], quoted) != NULL;
        n += snprintf(msg + n, sizeof msg - (size_t)n,
                      nested ? " You probably made a nesting mistake. Jinja is expecting this tag,"
                               " but currently looking for %s."
                             : " Jinja was looking for the following tags: %s.",
                      p->ends[p->n_ends - 1]);
    }
    if (p->n_tags)
        snprintf(msg + n, sizeof msg - (size_t)n,
                 " The innermost block that needs to be closed is '%.60s'.",
                 p->tags[p->n_tags - 1]);
    fail_at(p, line, msg);
}

/* Body of a statement up to one of `ends`, a NULL-terminated list whose last tells how messages
 * show it; the end's name is the current token afterwards. */
static void parse_block(parser *p, body *out, const char *const *ends)
{
    skip(p, T_COLON);
    expect(p, T_BLOCK_END);
    parse_body(p, out, ends);
    if (p->t->type == T_EOF) {
        int i = 0;
        while (ends[i])
            i++;
        p->ends[p->n_ends++] = ends[i + 1];
        fail_tags(p, NULL, p->t->line);
    }
}

#define ENDS(show, ...) ((const char *const[]){ __VA_ARGS__, NULL, show })

static node *parse_for(parser *p)
{
    node *n = node_new(p, N_FOR, next(p)->line);
    child(p, n, &n->a, parse_target(p, false, "in"));
    expect_name(p, "in");
    child(p, n, &n->b, parse_tuple(p, false, "recursive", false));
    if (skip_name(p, "if")) child(p, n, &n->c, parse_expr(p));
    n->recursive = skip_name(p, "recursive");
    parse_block(p, &n->body, ENDS("'endfor' or 'else'", "endfor", "else"));
    if (is_name(next(p), "endfor")) return n;
    parse_block(p, &n->orelse, ENDS("'endfor'", "endfor"));
    next(p);
    n->flag = true; // there is an else, be it empty
    return n;
}

static node *parse_if(parser *p)
{
    node *n = node_new(p, N_IF, next(p)->line);
    while (true) {
        n->bodies = grown(p->r, n->bodies, n->n_items, sizeof *n->bodies);
        add_item(p, n, parse_tuple(p, false, NULL, false));
        parse_block(p, &n->bodies[n->n_items - 1],
                    ENDS("'elif' or 'else' or 'endif'", "elif", "else", "endif"));
        const token *t = next(p);
        if (is_name(t, "elif")) continue;
        if (is_name(t, "else")) {
            parse_block(p, &n->orelse, ENDS("'endif'", "endif"));
            next(p);
        }
        return n;
    }
}

static node *parse_set(parser *p)
{
    int line = next(p)->line;
    node *target = parse_target(p, true, NULL);
    bool assign = skip(p, T_ASSIGN);
    node *n = node_new(p, assign ? N_SET : N_SETBLOCK, line);
    child(p, n, &n->a, target);
    if (assign) {
        child(p, n, &n->b, parse_tuple(p, true, NULL, false));
        return n;
    }
    child(p, n, &n->b, parse_filter(p, NULL, false));
    parse_block(p, &n->body, ENDS("'endset'", "endset"));
    next(p);
    return n;
}

static void parse_signature(parser *p, node *n)
{
    expect(p, T_LPAREN);
    while (p->t->type != T_RPAREN) {
        if (n->n_items) expect(p, T_COMMA);
        node *arg = parse_name_target(p);
        for (int i = 0; i < n->n_items; i++)
            if (!j_str_cmp(n->items[i]->name, arg->name))
                fail_at(p, arg->line, "duplicate argument");
        if (n->n_items >= 255) fail_at(p, arg->line, "too many parameters");
        if (skip(p, T_ASSIGN)) {
            n->defaults = grown(p->r, n->defaults, n->n_defaults, sizeof *n->defaults);
            child(p, n, &n->defaults[n->n_defaults++], parse_expr(p));
        } else if (n->n_defaults) {
            fail_at(p, p->t->line, "non-default argument follows default argument");
        }
        add_item(p, n, arg);
    }
    next(p);
}

static node *parse_macro(parser *p)
{
    node *n = node_new(p, N_MACRO, next(p)->line);
    n->name = parse_name_target(p)->name;
    parse_signature(p, n);
    parse_block(p, &n->body, ENDS("'endmacro'", "endmacro"));
    next(p);
    return n;
}

static node *parse_call_block(parser *p)
{
    node *n = node_new(p, N_CALLBLOCK, next(p)->line);
    if (p->t->type == T_LPAREN) parse_signature(p, n);
    child(p, n, &n->a, parse_expr(p));
    if (n->a->kind != N_CALL) fail_at(p, n->line, "expected call");
    parse_block(p, &n->body, ENDS("'endcall'", "endcall"));
    next(p);
    return n;
}

static node *parse_filter_block(parser *p)
{
    node *n = node_new(p, N_FILTERBLOCK, next(p)->line);
    child(p, n, &n->b, parse_filter(p, NULL, true));
    parse_block(p, &n->body, ENDS("'endfilter'", "endfilter"));
    next(p);
    return n;
}

static node *parse_with(parser *p)
{
    node *n = node_new(p, N_WITH, next(p)->line);
    while (p->t->type != T_BLOCK_END) {
        if (n->n_items) expect(p, T_COMMA);
        add_item(p, n, parse_target(p, false, NULL));
        expect(p, T_ASSIGN);
        add_item(p, n, parse_expr(p));
    }
    parse_block(p, &n->body, ENDS("'endwith'", "endwith"));
    next(p);
    return n;
}

static node *parse_autoescape(parser *p)
{
    node *n = node_new(p, N_SCOPE, next(p)->line);
    node *on = parse_expr(p);
    if (on->kind != N_CONST || on->konst.type != V_BOOL || on->konst.u.b) {
        p->r->line = n->line;
        jinja_fail(p->r, INFER_UNSUPPORTED, "autoescape other than false is not supported");
    }
    parse_block(p, &n->body, ENDS("'endautoescape'", "endautoescape"));
    next(p);
    return n;
}

static node *parse_named_block(parser *p)
{
    node *n = node_new(p, N_BLOCK, next(p)->line);
    n->name = expect(p, T_NAME)->v.u.s;
    n->flag = skip_name(p, "scoped");
    if (is_name(p->t, "required") || p->t->type == T_SUB)
        fail_at(p, p->t->line, "Block names in Jinja have to be valid Python identifiers");
    parse_block(p, &n->body, ENDS("'endblock'", "endblock"));
    next(p);
    if (p->t->type == T_NAME && !j_str_cmp(p->t->v.u.s, n->name)) next(p);
    return n;
}

static node *parse_print(parser *p)
{
    node *n = node_new(p, N_OUTPUT, next(p)->line);
    while (p->t->type != T_BLOCK_END) {
        if (n->n_items) expect(p, T_COMMA);
        add_item(p, n, parse_expr(p));
    }
    return n;
}

static node *parse_flow(parser *p)
{
    bool leave = is_name(p->t, "break");
    return node_new(p, leave ? N_BREAK : N_CONTINUE, next(p)->line);
}

static const struct {
    const char *tag;
    node *(*parse)(parser *p);
} statements[] = {
    { "if", parse_if },
    { "for", parse_for },
    { "set", parse_set },
    { "macro", parse_macro },
    { "call", parse_call_block },
    { "filter", parse_filter_block },
    { "with", parse_with },
    { "autoescape", parse_autoescape },
    { "block", parse_named_block },
    { "print", parse_print },
    { "break", parse_flow },
    { "continue", parse_flow },
};
static const char *const with_loader[] = { "include", "import", "from", "extends" };

static void parse_statement(parser *p, body *out)
{
    const token *t = p->t;
    if (t->type != T_NAME) fail_at(p, t->line, "tag name expected");
    const char *tag = describe(p, t);
    p->tags[p->n_tags++] = tag;
    deeper(p);
    for (int i = 0; i < COUNT_OF(statements); i++) {
        if (strcmp(tag, statements[i].tag)) continue;
        add_body(p, out, statements[i].parse(p));
        goto done;
    }
    if (!strcmp(tag, "generation")) { // marks the assistant's text for training: no effect here
        next(p);
        parse_block(p, out, ENDS("'endgeneration'", "endgeneration"));
        next(p);
        goto done;
    }
    p->r->line = t->line;
    for (int i = 0; i < COUNT_OF(with_loader); i++)
        if (!strcmp(tag, with_loader[i]))
            jinja_fail(p->r, INFER_UNSUPPORTED,
                       "'%s' is not supported: a chat template is one file", tag);
    p->n_tags--;
    fail_tags(p, tag, t->line);
done:
    p->depth--;
    p->n_tags--;
}

static void parse_body(parser *p, body *out, const char *const *ends)
{
    if (ends) {
        int i = 0;
        while (ends[i])
            i++;
        p->ends[p->n_ends++] = ends[i + 1];
    }
    while (p->t->type != T_EOF) {
        const token *t = p->t;
        if (t->type == T_DATA) {
            node *n = node_new(p, N_DATA, t->line);
            n->konst = next(p)->v;
            add_body(p, out, n);
        } else if (t->type == T_VARIABLE_BEGIN) {
            next(p);
            node *n = node_new(p, N_OUTPUT, t->line);
            add_item(p, n, parse_tuple(p, true, NULL, false));
            expect(p, T_VARIABLE_END);
            add_body(p, out, n);
        } else {
            expect(p, T_BLOCK_BEGIN);
            if (at_end(p, ends)) break;
            parse_statement(p, out);
            expect(p, T_BLOCK_END);
        }
    }
    if (ends) p->n_ends--;
}

void jinja_parse(jrun *r, body *out, const tokens *in)
{
    parser p = { .r = r, .t = in->v };
    readable(&p, p.t);
    parse_body(&p, out, NULL);
}
