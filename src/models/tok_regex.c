/*
 * tok_regex.c: the patterns of tokenizer files, which are written for Oniguruma (Ruby syntax,
 * UTF-8), run by PCRE2.
 *
 * Most of the two languages is the same. What differs is rewritten: \h is a hexadecimal digit, \s
 * \w \d \b and the [:names:] follow UTS #18, \p{Han} is the script and not its extensions, (?m)
 * lets the dot match newlines, ^ and $ always mean lines, {1,3}+ repeats and is not possessive, and
 * classes nest and intersect: [a&&[^b]] becomes (?:(?=[a])[^b]). A construct without a counterpart
 * is an error. Literal strings take no pattern at all.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <time.h>

#include "models/tok.h"

#define MAX_GROUPS 200
#define MATCH_LIMIT 20000000 // steps of one match, then it is given up

// White_Space, as members of a class, and all other characters.
#define SPACES                                                                                     \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"             \
    "\\x{202f}\\x{205f}\\x{3000}"
#define NO_SPACES                                                                                  \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}"                   \
    "\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}"                 \
    "\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define WORDS                                                                                      \
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}" // Latin-1 as
                                                                              // Oniguruma has it

struct tok_regex {
    pcre2_code *code; // NULL: a literal
    bytes source;     // the literal, or the pattern as given
};

struct regex_scratch {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack; // made when a match first needs more than the machine's
    size_t calls, bytes;    // matches tried, bytes passed
    double since;           // CPU seconds of this thread at the first look at the clock
};

static void *pcre_alloc(size_t n, void *user)
{
    (void)user;
    return mem_alloc(n, 1);
}
static void pcre_free(void *p, void *user)
{
    (void)user;
    mem_free(p);
}

// ---- translation ----------------------------------------------------------------------------

typedef struct translator {
    const char *p, *end;
    bytes out;
    infer_error *err;
} translator;

static infer_status put(translator *t, bytes *b, const char *s)
{
    return bytes_add(b, s, strlen(s), t->err);
}

static infer_status refuse(translator *t, const char *what)
{
    return error_set(t->err, INFER_UNSUPPORTED, "pattern: %s at '%.*s'", what,
                     (int)(t->end - t->p < 12 ? t->end - t->p : 12), t->p);
}

// The property names that Oniguruma knows and PCRE2 spells otherwise, in lower case.
static const struct {
    const char *name, *to;
} properties[] = {
    { "letter", "L" },
    { "lowercaseletter", "Ll" },
    { "uppercaseletter", "Lu" },
    { "titlecaseletter", "Lt" },
    { "modifierletter", "Lm" },
    { "otherletter", "Lo" },
    { "casedletter", "L&" },
    { "mark", "M" },
    { "nonspacingmark", "Mn" },
    { "spacingmark", "Mc" },
    { "enclosingmark", "Me" },
    { "number", "N" },
    { "decimalnumber", "Nd" },
    { "letternumber", "Nl" },
    { "othernumber", "No" },
    { "punctuation", "P" },
    { "connectorpunctuation", "Pc" },
    { "dashpunctuation", "Pd" },
    { "openpunctuation", "Ps" },
    { "closepunctuation", "Pe" },
    { "initialpunctuation", "Pi" },
    { "finalpunctuation", "Pf" },
    { "otherpunctuation", "Po" },
    { "symbol", "S" },
    { "mathsymbol", "Sm" },
    { "currencysymbol", "Sc" },
    { "modifiersymbol", "Sk" },
    { "othersymbol", "So" },
    { "separator", "Z" },
    { "spaceseparator", "Zs" },
    { "lineseparator", "Zl" },
    { "paragraphseparator", "Zp" },
    { "other", "C" },
    { "control", "Cc" },
    { "format", "Cf" },
    { "surrogate", "Cs" },
    { "privateuse", "Co" },
    { "unassigned", "Cn" },
    { "alpha", "Alphabetic" },
    { "alphabetic", "Alphabetic" },
    { "upper", "Uppercase" },
    { "uppercase", "Uppercase" },
    { "lower", "Lowercase" },
    { "lowercase", "Lowercase" },
    { "punct", "P" },
    { "digit", "Nd" },
    { "any", "Any" },
    { "emoji", "Emoji" },
    { "math", "Math" },
    { "cntrl", "Cc" },
    { "extendedpictographic", "Extended_Pictographic" },
    { "ideographic", "Ideographic" },
    { "emojipresentation", "Emoji_Presentation" },
    { "emojimodifier", "Emoji_Modifier" },
    { "emojicomponent", "Emoji_Component" },
    { "emojimodifierbase", "Emoji_Modifier_Base" },
};

// At the character after \p or \P. Writes the property to b.
static infer_status property(translator *t, bool negated, bytes *b)
{
    char name[64], tight[64];
    size_t n = 0, m = 0;
    if (t->p < t->end && *t->p != '{') {
        name[n++] = *t->p++;
    } else {
        t->p++;
        if (t->p < t->end && *t->p == '^') negated = !negated, t->p++;
        while (t->p < t->end && *t->p != '}') {
            if (n + 1 == sizeof name) return refuse(t, "long property name");
            name[n++] = *t->p++;
        }
        if (t->p >= t->end) return refuse(t, "property without }");
        t->p++;
    }
    name[n] = 0;
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        if (c == ' ' || c == '_' || c == '-') continue;
        tight[m++] = c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
    }
    tight[m] = 0;
    char made[96];
    const char *to = NULL;
    for (int i = 0; i < COUNT_OF(properties) && !to; i++)
        if (!strcmp(tight, properties[i].name)) to = properties[i].to;
    if (!strcmp(tight, "space") || !strcmp(tight, "whitespace"))
        return put(t, b, negated ? NO_SPACES : SPACES);
    if (!to && m <= 2) to = name;
    if (to)
        snprintf(made, sizeof made, "\\%c{%s}", negated ? 'P' : 'p', to);
    else // a script: the property itself, which \p{Han} alone is not in PCRE2
        snprintf(made, sizeof made, "\\%c{sc:%s}", negated ? 'P' : 'p', name);
    return put(t, b, made);
}

// At the character after a backslash, in a class or outside: what is a set of characters or a
// single one. Negated sets that no class member can say go to alts as classes of their own.
static infer_status escape(translator *t, bytes *items, bytes *alts)
{
    char c = *t->p++;
    switch (c) {
    case 'h': return put(t, items, "0-9a-fA-F");
    case 'H': return put(t, items, "\\x{0}-/:-@G-`g-\\x{10ffff}");
    case 's': return put(t, items, SPACES);
    case 'S': return put(t, items, NO_SPACES);
    case 'd': return put(t, items, "\\p{Nd}");
    case 'D': return put(t, items, "\\P{Nd}");
    case 'w': return put(t, items, WORDS);
    case 'W': TRY(alts->n ? put(t, alts, "|") : INFER_OK); return put(t, alts, "[^" WORDS "]");
    case 'v': return put(t, items, "\\x0b");
    case 'p': return property(t, false, items);
    case 'P': return property(t, true, items);
    case 'u': {
        char made[16];
        if (t->end - t->p < 4) return refuse(t, "short \\u");
        snprintf(made, sizeof made, "\\x{%.4s}", t->p);
        t->p += 4;
        return put(t, items, made);
    }
    case 'x':
    case '0': { // keep the number together
        char made[32];
        size_t n = 0;
        made[n++] = '\\';
        made[n++] = c;
        bool braces = t->p < t->end && *t->p == '{';
        while (t->p < t->end && n < sizeof made - 2) {
            char d = *t->p;
            bool hex = (d >= '0' && d <= '9') || (c == 'x' && ((d | 32) >= 'a' && (d | 32) <= 'f'));
            if (!hex && !(braces && (d == '{' || d == '}'))) break;
            if (!braces && n == 4) break;
            made[n++] = d;
            t->p++;
            if (d == '}') break;
        }
        made[n] = 0;
        return put(t, items, made);
    }
    case 'a':
    case 'e':
    case 'f':
    case 'n':
    case 'r':
    case 't': break;
    default:
        if ((c >= '1' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z')) {
            t->p--;
            return refuse(t, "unknown escape");
        }
        if ((unsigned char)c >= 0x80) return bytes_add(items, &c, 1, t->err); // \é is é
    }
    char made[2] = { '\\', c };
    return bytes_add(items, made, 2, t->err);
}

// At "[:"; *done false: no such name, an ordinary class follows.
static infer_status posix_name(translator *t, bytes *items, bytes *alts, bool *done)
{
    static const struct {
        const char *name, *set;
    } names[] = {
        { "alnum", "\\p{Alphabetic}\\p{Nd}" },
        { "alpha", "\\p{Alphabetic}" },
        { "blank", "\\p{Zs}\\t" },
        { "cntrl", "\\p{Cc}" },
        { "digit", "\\p{Nd}" },
        { "lower", "\\p{Lowercase}" },
        { "punct", "\\p{P}$+<=>\\^`|~" },
        { "space", SPACES },
        { "upper", "\\p{Uppercase}" },
        { "xdigit", "0-9a-fA-F" },
        { "word", WORDS },
        { "ascii", "\\x{0}-\\x{7f}" },
    };
    const char *p = t->p + 2;
    bool negated = p < t->end && *p == '^';
    p += negated;
    *done = false;
    for (int i = 0; i < COUNT_OF(names); i++) {
        size_t n = strlen(names[i].name);
        if ((size_t)(t->end - p) < n + 2 || memcmp(p, names[i].name, n) || memcmp(p + n, ":]", 2))
            continue;
        t->p = p + n + 2;
        *done = true;
        if (!negated) return put(t, items, names[i].set);
        if (alts->n) TRY(put(t, alts, "|"));
        TRY(put(t, alts, "[^"));
        TRY(put(t, alts, names[i].set));
        return put(t, alts, "]");
    }
    return INFER_OK;
}

// What one operand of a class, its members and alternatives, is in PCRE2.
static infer_status class_operand(translator *t, bytes *out, const bytes *items, const bytes *alts)
{
    if (!items->n && !alts->n) return put(t, out, "(?!)");
    if (!alts->n) {
        TRY(put(t, out, "["));
        TRY(bytes_add(out, items->p, items->n, t->err));
        return put(t, out, "]");
    }
    TRY(put(t, out, "(?:"));
    if (items->n) {
        TRY(put(t, out, "["));
        TRY(bytes_add(out, items->p, items->n, t->err));
        TRY(put(t, out, "]|"));
    }
    TRY(bytes_add(out, alts->p, alts->n, t->err));
    return put(t, out, ")");
}

static infer_status class_(translator *t, bytes *out, int depth);

// The members up to ']': items, alternatives, and what && demands before (lookaheads).
static infer_status class_body(translator *t, bytes *items, bytes *alts, bytes *demands, int depth)
{
    for (bool start = true;; start = false) {
        if (t->p >= t->end) return refuse(t, "class without ]");
        char c = *t->p;
        if (c == ']' && !start) {
            t->p++;
            return INFER_OK;
        }
        if (c == '[') {
            bool done = false;
            if (t->end - t->p > 2 && t->p[1] == ':') TRY(posix_name(t, items, alts, &done));
            if (done) continue;
            if (alts->n) TRY(put(t, alts, "|"));
            TRY(class_(t, alts, depth + 1));
        } else if (c == '&' && t->end - t->p > 1 && t->p[1] == '&') {
            t->p += 2;
            TRY(put(t, demands, "(?="));
            TRY(class_operand(t, demands, items, alts));
            TRY(put(t, demands, ")"));
            items->n = alts->n = 0;
        } else if (c == '\\') {
            if (++t->p >= t->end) return refuse(t, "lone backslash");
            if (*t->p == 'b') {
                t->p++;
                TRY(put(t, items, "\\x08"));
            } else {
                TRY(escape(t, items, alts));
            }
        } else { // PCRE2 gives ']' first in a class its literal meaning only there
            if (c == ']') TRY(put(t, items, "\\"));
            TRY(bytes_add(items, t->p++, 1, t->err));
        }
    }
}

// At '['. Writes one atom.
static infer_status class_(translator *t, bytes *out, int depth)
{
    bytes items = { 0 }, alts = { 0 }, demands = { 0 };
    infer_status st;
    if (depth > 20) return refuse(t, "classes nested too deep");
    t->p++;
    bool negated = t->p < t->end && *t->p == '^';
    t->p += negated;
    if ((st = class_body(t, &items, &alts, &demands, depth))) goto done;
    if (negated && items.n && !alts.n && !demands.n) {
        st = put(t, out, "[^");
        if (!st) st = bytes_add(out, items.p, items.n, t->err);
        if (!st) st = put(t, out, "]");
        goto done;
    }
    st = put(t, out, negated ? "(?:(?!" : "(?:");
    if (!st) st = bytes_add(out, demands.p, demands.n, t->err);
    if (!st) st = class_operand(t, out, &items, &alts);
    if (!st) st = put(t, out, negated ? ")\\p{Any})" : ")");
done:
    mem_free(items.p);
    mem_free(alts.p);
    mem_free(demands.p);
    return st;
}

// At '(': copies the group's head.
static infer_status group_head(translator *t)
{
    TRY(bytes_add(&t->out, t->p++, 1, t->err));
    if (t->p >= t->end || *t->p != '?') return INFER_OK;
    TRY(bytes_add(&t->out, t->p++, 1, t->err));
    if (t->p < t->end && strchr("<=!>:#'P", *t->p)) return INFER_OK; // the rest is copied as it is
    for (; t->p < t->end && *t->p != ':' && *t->p != ')'; t->p++) {
        if (!strchr("imx-", *t->p)) return refuse(t, "unknown group");
        TRY(bytes_add(&t->out, *t->p == 'm' ? "s" : t->p, 1, t->err));
    }
    return INFER_OK;
}

// At '{': *n is the length of a counted repetition, 0: a literal brace.
static size_t counted(const char *p, const char *end)
{
    const char *q = p + 1;
    bool digits = false;
    while (q < end && ((*q >= '0' && *q <= '9') || *q == ','))
        digits |= *q++ != ',';
    return q < end && *q == '}' && digits ? (size_t)(q - p + 1) : 0;
}

// A counted repetition of the atom that begins at `atom` of the output.
static infer_status repetition(translator *t, size_t n, size_t atom)
{
    bool zero = t->p[1] == ',', again = t->end - t->p > (ptrdiff_t)n && t->p[n] == '+';
    if (again) { // Ruby: ({1,3})+, where PCRE2 would read a possessive quantifier
        TRY(bytes_room(&t->out, 4, t->err));
        memmove(t->out.p + atom + 3, t->out.p + atom, t->out.n - atom);
        memcpy(t->out.p + atom, "(?:", 3);
        t->out.n += 3;
    }
    TRY(put(t, &t->out, zero ? "{0" : "{"));
    TRY(bytes_add(&t->out, t->p + 1, n - 1, t->err));
    t->p += n;
    if (!again) return INFER_OK;
    t->p++;
    return put(t, &t->out, ")+");
}

static infer_status atom_escape(translator *t)
{
    if (++t->p >= t->end) return refuse(t, "lone backslash");
    char c = *t->p;
    if (c == 'b' || c == 'B') {
        t->p++;
        return put(t, &t->out,
                   c == 'b' ? "(?:(?<=[" WORDS "])(?![" WORDS "])|(?<![" WORDS "])(?=[" WORDS "]))"
                            : "(?:(?<=[" WORDS "])(?=[" WORDS "])|(?<![" WORDS "])(?![" WORDS
                              "]))");
    }
    if (strchr("AzZGKRXN123456789kg", c) && c) { // the same in both
        char made[2] = { '\\', c };
        t->p++;
        return bytes_add(&t->out, made, 2, t->err);
    }
    bytes items = { 0 }, alts = { 0 };
    infer_status st = escape(t, &items, &alts);
    // A lone escaped character needs no class, and must not be cut from the rest of its UTF-8.
    if (!st && !alts.n && (items.n == 1 || (items.n == 2 && items.p[0] == '\\')))
        st = bytes_add(&t->out, items.p, items.n, t->err);
    else if (!st)
        st = class_operand(t, &t->out, &items, &alts);
    mem_free(items.p);
    mem_free(alts.p);
    return st;
}

static infer_status translate(translator *t)
{
    size_t groups[MAX_GROUPS], n_groups = 0, atom = 0;
    while (t->p < t->end) {
        char c = *t->p;
        size_t here = t->out.n, n;
        if (c == '\\') {
            TRY(atom_escape(t));
            atom = here;
        } else if (c == '[') {
            TRY(class_(t, &t->out, 0));
            atom = here;
        } else if (c == '(') {
            if (n_groups == MAX_GROUPS) return refuse(t, "groups nested too deep");
            groups[n_groups++] = here;
            TRY(group_head(t));
        } else if (c == '{' && (n = counted(t->p, t->end))) {
            TRY(repetition(t, n, atom));
        } else {
            if (c == ')' && n_groups)
                atom = groups[--n_groups];
            else if (((unsigned char)c & 0xC0) != 0x80 && !strchr("*+?|", c))
                atom = here;
            if (c == '{') TRY(put(t, &t->out, "\\"));
            TRY(bytes_add(&t->out, t->p++, 1, t->err));
        }
    }
    return INFER_OK;
}

// ---- compiling and matching -----------------------------------------------------------------

infer_status regex_new(tok_regex **out, const char *pattern, size_t n, bool literal,
                       infer_error *err)
{
    tok_regex *re = mem_zero(1, sizeof *re);
    if (!re) return error_set(err, INFER_NOMEM, "pattern");
    infer_status st = bytes_add(&re->source, pattern, n, err);
    if (!st) st = bytes_add(&re->source, "", 1, err);
    if (st) goto fail;
    re->source.n = n;
    if (literal) {
        *out = re;
        return INFER_OK;
    }
    translator t = { .p = pattern, .end = pattern + n, .err = err };
    st = translate(&t);
    if (!st) {
        pcre2_general_context *general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
        pcre2_compile_context *context = general ? pcre2_compile_context_create(general) : NULL;
        int code = 0;
        PCRE2_SIZE at = 0;
        if (context) {
            pcre2_set_newline(context, PCRE2_NEWLINE_LF);
            re->code = pcre2_compile((PCRE2_SPTR)(t.out.n ? t.out.p : ""), t.out.n,
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK,
                                     &code, &at, context);
            if (!re->code) {
                char why[160] = "";
                pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
                st = error_set(err, INFER_FORMAT, "pattern '%.200s': %s", re->source.p, why);
            } else { // without JIT (no executable memory) matching is slower, nothing else
                pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE);
            }
        } else {
            st = error_set(err, INFER_NOMEM, "pattern");
        }
        pcre2_compile_context_free(context);
        pcre2_general_context_free(general);
    }
    mem_free(t.out.p);
    if (!st) {
        *out = re;
        return INFER_OK;
    }
fail:
    regex_free(re);
    return st;
}

void regex_free(tok_regex *re)
{
    if (!re) return;
    pcre2_code_free(re->code);
    mem_free(re->source.p);
    mem_free(re);
}

const char *regex_literal(const tok_regex *re, size_t *n)
{
    if (re->code) return NULL;
    *n = re->source.n;
    return re->source.p;
}

infer_status regex_scratch_new(regex_scratch **out, infer_error *err)
{
    regex_scratch *x = mem_zero(1, sizeof *x);
    pcre2_general_context *general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    if (x && general) {
        x->data = pcre2_match_data_create(1, general);
        x->context = pcre2_match_context_create(general);
    }
    pcre2_general_context_free(general);
    if (!x || !x->data || !x->context) {
        regex_scratch_free(x);
        return error_set(err, INFER_NOMEM, "pattern matching");
    }
    pcre2_set_match_limit(x->context, MATCH_LIMIT);
    *out = x;
    return INFER_OK;
}

void regex_scratch_free(regex_scratch *x)
{
    if (!x) return;
    pcre2_match_data_free(x->data);
    pcre2_match_context_free(x->context);
    pcre2_jit_stack_free(x->stack);
    mem_free(x);
}

/* A pattern that looks far ahead at every step is quadratic without ever backtracking much, which
 * no limit of PCRE2 sees: the clock does. Ordinary text passes at 10 MB/s and more. */
static bool too_slow(regex_scratch *x)
{
    struct timespec t;
    if (++x->calls % 64) return false;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    double now = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    if (x->since == 0) x->since = now;
    return now - x->since > 5 + 1e-6 * (double)x->bytes;
}

static int match(const tok_regex *re, regex_scratch *x, const char *s, size_t n, size_t from)
{
    int rc = pcre2_match(re->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK, x->data, x->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !x->stack) {
        x->stack = pcre2_jit_stack_create(64 << 10, 8 << 20, NULL);
        pcre2_jit_stack_assign(x->context, NULL, x->stack);
        if (x->stack)
            rc = pcre2_match(re->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK, x->data,
                             x->context);
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) // the interpreter keeps its frames on the heap
        rc = pcre2_match(re->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         x->data, x->context);
    return rc;
}

infer_status regex_next(const tok_regex *re, regex_scratch *x, const char *s, size_t n,
                        regex_iter *it, size_t *begin, size_t *end, bool *found, infer_error *err)
{
    *found = false;
    if (!re->code) {
        const char *hit = re->source.n && it->next <= n
                              ? memmem(s + it->next, n - it->next, re->source.p, re->source.n)
                              : NULL;
        if (!hit) return INFER_OK;
        *begin = (size_t)(hit - s);
        *end = it->next = *begin + re->source.n;
        *found = true;
        return INFER_OK;
    }
    while (it->next <= n) {
        int rc = too_slow(x) ? PCRE2_ERROR_MATCHLIMIT : match(re, x, s, n, it->next);
        if (rc == PCRE2_ERROR_NOMATCH) return INFER_OK;
        if (rc < 0)
            return error_set(err, rc == PCRE2_ERROR_NOMEMORY ? INFER_NOMEM : INFER_LIMIT,
                             "pattern '%.200s': no result within the limits (%d)", re->source.p,
                             rc);
        const PCRE2_SIZE *o = pcre2_get_ovector_pointer(x->data);
        if (o[0] == o[1] && it->any && o[1] == it->last_end) { // empty right after a match
            int k = it->next < n ? utf8_decode(s + it->next, n - it->next, &(uint32_t){ 0 }) : 1;
            it->next += k > 0 ? (size_t)k : 1;
            continue;
        }
        *begin = o[0] < o[1] ? o[0] : o[1];
        x->bytes += o[1] - it->next;
        *end = it->next = it->last_end = o[1];
        it->any = *found = true;
        return INFER_OK;
    }
    return INFER_OK;
}
