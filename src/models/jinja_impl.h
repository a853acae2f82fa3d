/*
 * jinja_impl.h: what the interpreter's files share: memory, values, the tree, the run.
 * Names: jinja_ for what ends a run or begins one, j_ for all else that is not static.
 *
 * Errors: jinja_fail jumps (longjmp) to the one handler of a compilation or rendering; nothing
 * between owns anything but memory of the pool, which is freed whole. So no function here returns a
 * status, and none is called outside such a handler.
 *
 * Invariants:
 * 1. Values are immutable, but for namespaces, iterators, cyclers, joiners and loops: as in the
 *    sandbox, a list or dict never changes after it was made.
 * 2. All text is valid UTF-8. Lengths in `n` are bytes; Python's are code points (jinja_len).
 * 3. Every loop over data that a template or message controls calls jinja_step; every recursion
 * calls jinja_enter and jinja_leave, or runs over tree nodes, whose depth is limited (MAX_TREE).
 */
#ifndef MODELS_JINJA_IMPL_H
#define MODELS_JINJA_IMPL_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"
#include "models/jinja.h"

enum {
    MAX_TREE = 120,          // depth of the syntax tree and of the parser
    MAX_DEPTH = 360,         // nested evaluations, macro calls included; 150 KB of stack at most
    MAX_SOURCE = 1 << 20,    // bytes of a template
    MAX_COMPILED = 96 << 20, // bytes of its tree
    MAX_RANGE = 100000,      // items of a range, jinja2's sandbox has the same
    MAX_PARAMS = 8,
};

typedef struct jrun jrun;
typedef struct value value;
typedef struct node node;
typedef struct frame frame;
typedef struct scope scope;

/* ---- memory -------------------------------------------------------------------------------- */

typedef struct pool_chunk pool_chunk;
/* Bump memory with a limit. */
typedef struct pool {
    pool_chunk *chunk;
    size_t used, limit; // bytes of all chunks
} pool;

void *jinja_alloc(jrun *r, size_t n, size_t size); // zeroed, 16-byte aligned; fails instead of NULL
void jinja_pool_free(pool *p);

/* ---- text ---------------------------------------------------------------------------------- */

/* A buffer that several strings share: each is a prefix or part of it. Appending to the string that
 * ends where the buffer ends needs no copy, so that a template which grows a string in a loop takes
 * linear time and memory. */
typedef struct strbuf {
    char *s;
    uint8_t *foreign; // [cap] 1: the byte came from the context; NULL: all bytes as `all_foreign`
    size_t n, cap;
    bool all_foreign;
} strbuf;

typedef struct str {
    const char *s;
    size_t n;
    const uint8_t *foreign; // [n], or NULL: all bytes as `all_foreign`
    strbuf *buf;            // what s begins, or NULL
    int64_t n_chars;        // -1: not counted yet
    bool all_foreign;
    bool markup; // Python's Markup: escapes what it is combined with
} str;

/* Text under construction. */
typedef struct builder {
    jrun *r;
    strbuf *b;
    size_t limit;
} builder;

/* ---- values -------------------------------------------------------------------------------- */

typedef enum value_type {
    V_MISSING, // no value: an absent argument, a name without a value
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STR,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_RANGE,
    V_VIEW, // dict.keys(), .values(), .items()
    V_ITER, // what Python's generators and iterators are: consumed once
    V_NAMESPACE,
    V_FUNCTION, // global function
    V_METHOD,   // bound
    V_MACRO,
    V_LOOP,
    V_CYCLER,
    V_JOINER,
    V_SLICE, // only as the argument of a subscript
} value_type;

typedef struct list list;
typedef struct dict dict;
typedef struct range range;
typedef struct view view;
typedef struct iter iter;
typedef struct undefined undefined;
typedef struct method method;
typedef struct macro macro;
typedef struct loop loop;
typedef struct cycler cycler;
typedef struct joiner joiner;
typedef struct builtin builtin;

struct value {
    value_type type;
    union {
        bool b;
        int64_t i;
        double f;
        str *s;
        list *l; // V_LIST, V_TUPLE
        dict *d; // V_DICT, V_NAMESPACE
        range *r;
        view *w;
        iter *it;
        undefined *u;
        const builtin *fn;
        method *m;
        macro *mac;
        loop *loop;
        cycler *cyc;
        joiner *join;
        value *slice; // [3]: start, stop, step
    } u;
};

struct list {
    value *v;
    size_t n, cap;
    bool group; // groupby's pair: .grouper and .list
};

typedef struct dict_entry {
    value key, val;
    uint64_t hash;
} dict_entry;
struct dict {
    dict_entry *e; // in order of insertion
    size_t n, cap;
    uint32_t *index; // [n_index] entry + 1, open addressing; NULL while small
    size_t n_index;
};

struct range {
    int64_t start, stop, step, n;
};

enum { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };
struct view {
    dict *d;
    int kind;
};

/* Items were computed when it was made; where computing one failed, that failure is kept and comes
 * when the consumer reaches it, as with a lazy generator. */
struct iter {
    value *v;
    size_t n, pos;
    const char *type;    // Python's type name, "generator"
    const char *failure; // NULL: none
    infer_status failure_code;
};

struct undefined {
    str *hint;      // the whole message, or NULL
    const char *of; // "str object": what has no such element; NULL: a variable
    value name;
};

struct method {
    value self;
    const builtin *fn;
    str *text_name; // of the attribute
};

struct macro {
    const node *def; // N_MACRO or N_CALLBLOCK
    scope *parent;   // where it was defined
};

struct cycler {
    list *items;
    size_t pos;
};
struct joiner {
    value sep;
    bool used;
};

/* ---- calls --------------------------------------------------------------------------------- */

typedef struct kwarg {
    str *name;
    value v;
} kwarg;
typedef struct args {
    value *v;
    int n;
    kwarg *kw;
    int n_kw;
} args;

/* Filters, tests, methods and global functions. `params` names the parameters: "s old new ?count";
 * "?" may be absent (V_MISSING), "/" first: keywords are not accepted, "*": the function reads the
 * whole call itself. Parameter 0 of a filter, test or method is the value. */
struct builtin {
    const char *name;
    value (*fn)(jrun *r, value *a, const args *call);
    const char *params;
};

/* ---- the tree ------------------------------------------------------------------------------ */

typedef enum node_kind {
    /* expressions */
    N_CONST, // konst
    N_NAME,  // name; up, slot
    N_NSREF, // name; up, slot; attr: assignment target
    N_TUPLE,
    N_LIST,    // items
    N_DICT,    // items: key, value, key, value
    N_CONCAT,  // items
    N_CHAIN,   // items: operands; ops[i] between i and i + 1: arithmetic, left to right
    N_COMPARE, // likewise
    N_AND,
    N_OR, // items
    N_NOT,
    N_NEG,
    N_POS,    // a
    N_COND,   // a if b else c (NULL)
    N_ATTR,   // a, attr
    N_ITEM,   // a, b
    N_SLICE,  // a, b, c, each may be NULL
    N_CALL,   // a; items: arguments; kw; b: *args, c: **kwargs
    N_FILTER, // a (NULL: the block's text), fn, name; arguments as N_CALL
    N_TEST,   // likewise
    /* statements */
    N_DATA,        // konst: the template's own text
    N_OUTPUT,      // items
    N_FOR,         // a: target, b: iterable, c: test; body, orelse; frame, frame_test, frame_else
    N_IF,          // items: conditions; bodies[i]; orelse
    N_SET,         // a: target, b: value
    N_SETBLOCK,    // a: target, b: filter or NULL; body, frame
    N_MACRO,       // name; up, slot; items: N_NAME parameters; defaults; body, frame
    N_CALLBLOCK,   // a: call; items, defaults, body, frame
    N_FILTERBLOCK, // b: filter; body, frame
    N_WITH,        // items: target, value, …; body, frame
    N_SCOPE,       // body, frame
    N_BLOCK,       // name; body, frame; flag: scoped
    N_BREAK,
    N_CONTINUE,
} node_kind;

typedef struct kwarg_node {
    str *name;
    node *v;
} kwarg_node;
typedef struct body {
    node **v;
    int n;
} body;

struct node {
    node_kind kind;
    int line;
    int depth;    // 1 + that of the deepest child
    int up, slot; // names: scopes to go up, slot there
    bool flag;
    bool recursive, extended;                    // N_FOR: marked so; its body uses `loop`
    bool uses_caller, uses_kwargs, uses_varargs; // macros: parameters beyond the named ones
    int slot_caller, slot_kwargs, slot_varargs, slot_loop; // of `frame`
    value konst;
    str *name, *attr;
    const builtin *fn;
    node *a, *b, *c;
    node **items;
    int n_items;
    uint8_t *ops;
    kwarg_node *kw;
    int n_kw;
    body *bodies; // N_IF
    body body, orelse;
    node **defaults; // of the last n_defaults parameters
    int n_defaults;
    frame *frame, *frame_test, *frame_else;
};

typedef enum op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOTIN,
} op;

/* A region with names of its own. How a name gets its value when the region is entered follows
 * jinja2's compiler, which decides it from the text alone. */
typedef enum load_kind {
    LOAD_PARAM,   // set by the construct
    LOAD_RESOLVE, // from the context
    LOAD_ALIAS,   // a copy of the outer region's
    LOAD_NOTHING,
} load_kind;
typedef struct symbol {
    str *name;
    load_kind load;
    int up, slot; // LOAD_ALIAS: from where, seen from the region's own scope
} symbol;
struct frame {
    frame *parent;
    symbol *sym;
    int n, cap;
};
struct scope {
    scope *parent;
    const frame *frame;
    value v[]; // [frame->n]
};

struct jinja_template {
    pool mem;
    frame *root;
    body body;
};

/* ---- a compilation or a rendering ---------------------------------------------------------- */

struct jrun {
    pool *mem;
    jmp_buf *handler;
    infer_status code; // of the failure
    char msg[900];
    int line; // of the template, for messages
    uint64_t steps, max_steps;
    int depth;
    uint64_t hash_seed;
    /* rendering only */
    const jinja_options *options;
    size_t max_text; // bytes of any string
    dict *context;
    scope *root;
    builder *out; // where output goes now
};

_Noreturn void jinja_fail(jrun *r, infer_status code, const char *fmt, ...) ATTR_PRINTF(3, 4);
/* What Python would raise as any exception. */
#define RAISE(r, ...) jinja_fail(r, INFER_ARGUMENT, __VA_ARGS__)
void jinja_step(jrun *r, uint64_t n);
void jinja_enter(jrun *r);
static inline void jinja_leave(jrun *r) { r->depth--; }

/* jinja_value.c: making */
static inline value v_none(void) { return (value){ .type = V_NONE }; }
static inline value v_bool(bool b) { return (value){ .type = V_BOOL, .u.b = b }; }
static inline value v_int(int64_t i) { return (value){ .type = V_INT, .u.i = i }; }
static inline value v_float(double f) { return (value){ .type = V_FLOAT, .u.f = f }; }
static inline value v_str(str *s) { return (value){ .type = V_STR, .u.s = s }; }
static inline value v_list(list *l) { return (value){ .type = V_LIST, .u.l = l }; }
static inline value v_tuple(list *l) { return (value){ .type = V_TUPLE, .u.l = l }; }
static inline value v_dict(dict *d) { return (value){ .type = V_DICT, .u.d = d }; }
static inline bool v_given(value v) { return v.type != V_MISSING; }
str *j_str_new(jrun *r, const char *s, size_t n);               // copies; the template's own text
str *j_str_lit(jrun *r, const char *s);                         // borrows
str *j_str_part(jrun *r, const str *s, size_t from, size_t to); // bytes
str *j_str_plain(jrun *r, str *s);                              // the same without markup
value j_v_text(jrun *r, const char *s);
list *j_list_new(jrun *r, size_t cap);
void j_list_add(jrun *r, list *l, value v);
dict *j_dict_new(jrun *r);
void j_dict_set(jrun *r, dict *d, value key, value v);
value *j_dict_find(jrun *r, const dict *d, value key);
value j_v_iter(jrun *r, list *items, const char *type);
value j_v_undefined(jrun *r, str *name);
value j_v_undefined_hint(jrun *r, const char *hint);
value j_v_undefined_item(jrun *r, value of, value name);
value jinja_from_json(jrun *r, json_t *j); // the context

/* jinja_value.c: asking */
const char *j_type_name(value v); // Python's type(v).__name__
bool j_truth(jrun *r, value v);
bool j_equal(jrun *r, value a, value b);
bool j_contains(jrun *r, value in, value item);
int j_compare(jrun *r, value a, value b, op o); // the truth of a < b and so on
int j_str_cmp(const str *a, const str *b);
bool j_str_is(const str *a, const char *b);
bool j_is_number(value v); // bool, int, float
double j_as_double(value v);
int64_t j_need_int(jrun *r, value v);                       // bool counts as int; else a TypeError
int64_t j_length(jrun *r, value v);                         // len(v)
_Noreturn void j_fail_undefined(jrun *r, value v);          // what using it raises
int64_t jinja_len(jrun *r, const str *s);                   // code points
size_t j_char_offset(jrun *r, const str *s, int64_t chars); // byte offset of a code point, clamped

/* Walking any iterable; begin fails for what is none. */
typedef struct cursor {
    value of;
    size_t pos;
} cursor;
bool j_is_iterable(value v);
cursor j_iterate(jrun *r, value v);
bool j_cursor_next(jrun *r, cursor *c, value *out);
list *j_to_list(jrun *r, value v);

/* jinja_text.c */
void j_sb_init(builder *b, jrun *r);
void j_sb_raw(builder *b, const char *s, size_t n, bool foreign);
void j_sb_lit(builder *b, const char *s);
void j_sb_str(builder *b, const str *s);
void j_sb_part(builder *b, const str *s, size_t from, size_t to);
void j_sb_char(builder *b, uint32_t c, bool foreign);
void j_sb_fmt(builder *b, const char *fmt, ...) ATTR_PRINTF(2, 3);
str *j_sb_done(builder *b);
static inline bool foreign_at(const str *s, size_t i)
{
    return s->foreign ? s->foreign[i] : s->all_foreign;
}
str *j_str_concat(jrun *r, str *a, str *b); // grows a's buffer where it can
str *j_to_str(jrun *r, value v);            // str(v); markup is kept
void j_sb_value(builder *b, value v);       // str(v)
void j_sb_repr(builder *b, value v);
str *j_repr(jrun *r, value v);
size_t j_float_repr(char out[40], double f);
bool j_parse_int(jrun *r, const str *s, int base, int64_t *out); // Python's int(s, base)
bool j_parse_float(jrun *r, const str *s, double *out);          // Python's float(s)
bool j_is_space(uint32_t c);                                     // str.isspace of one character
size_t j_next_char(const char *s, size_t n, uint32_t *c);        // 1 to 4
value j_tojson(jrun *r, value v, int indent, const str *indent_text, bool ascii,
               const str *item_sep, const str *key_sep, bool sort_keys);

/* jinja_eval.c */
value j_eval(jrun *r, scope *s, const node *n);
void j_eval_args(jrun *r, scope *s, const node *n, args *out, int room_before);
value j_call_value(jrun *r, value f, args *call);
value j_call_builtin(jrun *r, const builtin *fn, const char *kind, const args *call);
value j_get_attr(jrun *r, value of, str *name);
value j_get_item(jrun *r, value of, value key);
value j_get_slice(jrun *r, value of, value start, value stop, value step);
value j_binary(jrun *r, op o, value a, value b);
value j_eval_filter(jrun *r, scope *s, const node *n, value *in);

/* jinja_exec.c */
value j_call_macro(jrun *r, macro *m, const args *call);
value j_loop_attr(jrun *r, loop *l, const str *name);
str *j_loop_recurse(jrun *r, loop *l, value items);
value j_loop_cycle(jrun *r, loop *l, const args *call);
bool j_loop_changed(jrun *r, loop *l, const args *call);
int64_t j_loop_length(jrun *r, loop *l);
int64_t j_loop_index(const loop *l);

/* tables */
const builtin *j_find_filter(const str *name);
const builtin *j_find_test(const str *name);
const builtin *j_find_global(const str *name);
const builtin *j_find_method(value of, const str *name); // NULL: none
bool j_is_unsafe_attribute(value of, const str *name);
value j_str_strip(jrun *r, str *s, value chars, bool left, bool right);
value j_str_split_lines(jrun *r, str *s, bool keep);
str *j_str_case(jrun *r, str *s, char how); // 'u' 'l' 'c' 't' 's': as upper lower capitalize
                                            // title swapcase
str *j_escape_html(jrun *r, value v);
value j_str_join(jrun *r, str *sep, value items);
str *j_str_replace(jrun *r, str *s, str *old, str *new_text, int64_t count);
int64_t j_str_find(const str *s, const str *sub, size_t from, size_t to); // bytes, -1
/* str.isalpha and so on of one character: a alpha, d digit, D decimal, n numeric, s space,
 * p printable, x alphanumeric. */
bool j_is_kind(uint32_t c, char kind);
bool j_is_upper_lower(jrun *r, const str *s, bool upper);
extern const builtin j_sequence_filters[], j_text_filters[];

/* jinja_format.c */
value j_format_percent(jrun *r, str *fmt, value arg);
value j_format_braces(jrun *r, str *fmt, const args *call);
str *j_format_time(jrun *r, const str *fmt, const struct tm *t);

/* jinja_lex.c, jinja_parse.c, jinja_scope.c */
typedef enum token_type {
    T_EOF,
    T_DATA,
    T_VARIABLE_BEGIN,
    T_VARIABLE_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INTEGER,
    T_FLOAT,
    T_ADD,
    T_SUB,
    T_MUL,
    T_DIV,
    T_FLOORDIV,
    T_MOD,
    T_POW,
    T_TILDE,
    T_LBRACKET,
    T_RBRACKET,
    T_LPAREN,
    T_RPAREN,
    T_LBRACE,
    T_RBRACE,
    T_EQ,
    T_NE,
    T_GT,
    T_GTEQ,
    T_LT,
    T_LTEQ,
    T_ASSIGN,
    T_DOT,
    T_COLON,
    T_PIPE,
    T_COMMA,
    T_SEMICOLON,
    T_ERROR, // what follows cannot be read; v is the message. Counts when the parser gets there
} token_type;
typedef struct token {
    token_type type;
    int line;
    value v; // text of names, strings and data; numbers
} token;
typedef struct tokens {
    token *v;
    size_t n, cap;
} tokens;
const char *j_token_name(token_type t);
void jinja_lex(jrun *r, tokens *out, const char *text, size_t n);
void jinja_parse(jrun *r, body *out, const tokens *in);
void jinja_resolve(jrun *r, jinja_template *t);

#endif
