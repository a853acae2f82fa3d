/*
 * jinja_lex.c: template text to tokens, with jinja2's whitespace rules: a newline right after a
 * block or comment is dropped (trim_blocks), blanks between a line's start and a block or comment
 * too (lstrip_blocks), "-" strips all whitespace on its side, "+" keeps it, and one newline at the
 * template's end is dropped.
 */
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "models/jinja_impl.h"

typedef struct lexer {
    jrun *r;
    tokens *out;
    const char *s;
    size_t n, pos;
    int line;
    bool line_starting; // the last thing read ended with a newline, or nothing was read yet
    char *open;         // brackets that wait to be closed
    size_t n_open, cap_open;
    bool failed;
} lexer;

static const struct {
    const char *text;
    token_type type;
} operators[] = {
    { "//", T_FLOORDIV }, { "**", T_POW },      { "==", T_EQ },    { "!=", T_NE },
    { ">=", T_GTEQ },     { "<=", T_LTEQ },     { "+", T_ADD },    { "-", T_SUB },
    { "/", T_DIV },       { "*", T_MUL },       { "%", T_MOD },    { "~", T_TILDE },
    { "[", T_LBRACKET },  { "]", T_RBRACKET },  { "(", T_LPAREN }, { ")", T_RPAREN },
    { "{", T_LBRACE },    { "}", T_RBRACE },    { ">", T_GT },     { "<", T_LT },
    { "=", T_ASSIGN },    { ".", T_DOT },       { ":", T_COLON },  { "|", T_PIPE },
    { ",", T_COMMA },     { ";", T_SEMICOLON },
};

const char *j_token_name(token_type t)
{
    static const char *const names[] = { [T_EOF] = "end of template",
                                         [T_DATA] = "template data / text",
                                         [T_VARIABLE_BEGIN] = "begin of print statement",
                                         [T_VARIABLE_END] = "end of print statement",
                                         [T_BLOCK_BEGIN] = "begin of statement block",
                                         [T_BLOCK_END] = "end of statement block",
                                         [T_NAME] = "name",
                                         [T_STRING] = "string",
                                         [T_INTEGER] = "integer",
                                         [T_FLOAT] = "float" };
    if ((size_t)t < sizeof names / sizeof *names && names[t]) return names[t];
    for (int i = 0; i < COUNT_OF(operators); i++)
        if (operators[i].type == t) return operators[i].text;
    return "?";
}

static void add(lexer *l, token_type type, value v)
{
    tokens *t = l->out;
    if (t->n == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 256;
        token *more = jinja_alloc(l->r, cap, sizeof *more);
        if (t->n) memcpy(more, t->v, t->n * sizeof *more);
        t->v = more;
        t->cap = cap;
    }
    t->v[t->n++] = (token){ type, l->line, v };
}

/* jinja2 reads its input as the parser asks for it, so an earlier fault of grammar counts first. */
static void fail(lexer *l, const char *what)
{
    if (!l->failed) add(l, T_ERROR, v_str(j_str_new(l->r, what, strlen(what))));
    l->failed = true;
    l->pos = l->n;
}

static value text_value(lexer *l, const char *s, size_t n)
{
    str *t = j_str_new(l->r, s, n);
    jinja_len(l->r, t);
    return v_str(t);
}

static bool at(const lexer *l, size_t pos, const char *what)
{
    size_t n = strlen(what);
    return l->n - pos >= n && !memcmp(l->s + pos, what, n);
}

static size_t skip_space(const lexer *l, size_t pos)
{
    while (pos < l->n) {
        uint32_t c;
        size_t k = j_next_char(l->s + pos, l->n - pos, &c);
        if (!j_is_space(c)) break;
        pos += k;
    }
    return pos;
}

/* Moves to `to`, counting lines. */
static void advance(lexer *l, size_t to)
{
    for (size_t i = l->pos; i < to; i++)
        l->line += l->s[i] == '\n';
    if (to > l->pos) l->line_starting = l->s[to - 1] == '\n';
    l->pos = to;
}

/* End of the text before a tag, after what the tag strips from it. */
static size_t strip_before(const lexer *l, size_t from, size_t tag, char sign, bool variable)
{
    if (sign == '-') {
        size_t end = tag;
        while (end > from) {
            size_t back = end - 1;
            while (back > from && ((unsigned char)l->s[back] & 0xc0) == 0x80)
                back--;
            uint32_t c;
            j_next_char(l->s + back, end - back, &c);
            if (!j_is_space(c)) break;
            end = back;
        }
        return end;
    }
    if (sign == '+' || variable) return tag;
    size_t start = tag;
    while (start > from && l->s[start - 1] != '\n')
        start--;
    bool line_start = start > from || l->line_starting;
    size_t blank = start;
    while (blank < tag) {
        uint32_t c;
        size_t k = j_next_char(l->s + blank, tag - blank, &c);
        if (!j_is_space(c)) return tag;
        blank += k;
    }
    return line_start ? start : tag;
}

static void add_data(lexer *l, size_t from, size_t to)
{
    if (to > from) add(l, T_DATA, text_value(l, l->s + from, to - from));
}

/* Position after "{%- raw %}" at pos, 0: there is none. */
static size_t match_raw(const lexer *l, size_t pos)
{
    size_t p = pos + 2;
    if (p < l->n && (l->s[p] == '-' || l->s[p] == '+')) p++;
    p = skip_space(l, p);
    if (!at(l, p, "raw")) return 0;
    p = skip_space(l, p + 3);
    if (at(l, p, "-%}")) return skip_space(l, p + 3);
    return at(l, p, "%}") ? p + 2 : 0;
}

/* After the end of a block or comment that starts at pos ("+%}", "-%}", "%}"), 0: there is none. */
static size_t match_end(const lexer *l, size_t pos, const char *close)
{
    if (l->n - pos < 2) return 0;
    char sign = l->s[pos];
    bool signed_end = sign == '+' || sign == '-';
    if (!at(l, pos + signed_end, close)) return 0;
    pos += signed_end + 2u;
    if (signed_end) return sign == '-' ? skip_space(l, pos) : pos;
    return pos < l->n && l->s[pos] == '\n' ? pos + 1 : pos;
}

static void lex_raw(lexer *l)
{
    size_t from = l->pos;
    for (size_t p = from; p < l->n; p++) {
        if (!at(l, p, "{%")) continue;
        size_t q = p + 2;
        char sign = q < l->n && (l->s[q] == '-' || l->s[q] == '+') ? l->s[q] : 0;
        size_t name = skip_space(l, q + (sign != 0));
        if (!at(l, name, "endraw")) continue;
        size_t end = match_end(l, skip_space(l, name + 6), "%}");
        if (!end) continue;
        add_data(l, from, strip_before(l, from, p, sign, false));
        advance(l, end);
        return;
    }
    fail(l, "Missing end of raw directive");
}

static void lex_comment(lexer *l)
{
    for (size_t p = l->pos; p + 1 < l->n; p++) {
        size_t end = match_end(l, p, "#}");
        if (!end) continue;
        advance(l, end);
        return;
    }
    fail(l, "Missing end of comment tag");
}

/* ---- inside a tag -------------------------------------------------------------------------- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Digits with single underscores between them; returns the end, pos where there are none. */
static size_t digits(const lexer *l, size_t pos)
{
    size_t p = pos;
    while (p < l->n && is_digit(l->s[p])) {
        p++;
        if (p + 1 < l->n && l->s[p] == '_' && is_digit(l->s[p + 1])) p++;
    }
    return p;
}

static size_t match_float(const lexer *l)
{
    if (l->pos && l->s[l->pos - 1] == '.') return 0;
    size_t whole = digits(l, l->pos);
    if (whole == l->pos) return 0;
    size_t p = whole, end = 0;
    if (p < l->n && l->s[p] == '.') {
        size_t fraction = digits(l, p + 1);
        if (fraction == p + 1) return 0;
        end = p = fraction;
    }
    if (p < l->n && (l->s[p] == 'e' || l->s[p] == 'E')) {
        size_t q = p + 1;
        if (q < l->n && (l->s[q] == '+' || l->s[q] == '-')) q++;
        size_t exp = digits(l, q);
        if (exp > q) end = exp;
    }
    return end;
}

static size_t match_integer(const lexer *l)
{
    size_t p = l->pos;
    if (!is_digit(l->s[p])) return 0;
    if (l->s[p] != '0') return digits(l, p);
    char kind = p + 1 < l->n ? l->s[p + 1] | 32 : 0;
    const char *set = kind == 'b'   ? "01"
                      : kind == 'o' ? "01234567"
                      : kind == 'x' ? "0123456789abcdefABCDEF"
                                    : NULL;
    size_t q = p + 2, end = 0;
    while (set && q < l->n) {
        if (l->s[q] == '_') q++;
        if (q >= l->n || !l->s[q] || !strchr(set, l->s[q])) break;
        end = ++q;
    }
    if (end) return end;
    for (q = p + 1;;) {
        size_t zero = q < l->n && l->s[q] == '_' ? q + 1 : q;
        if (zero >= l->n || l->s[zero] != '0') return q;
        q = zero + 1;
    }
}

static void lex_number(lexer *l, size_t end, bool real)
{
    str t = { .s = l->s + l->pos, .n = end - l->pos, .n_chars = -1 };
    value v = v_int(0);
    l->r->line = l->line;
    if (real ? !j_parse_float(l->r, &t, &v.u.f) : !j_parse_int(l->r, &t, 0, &v.u.i))
        fail(l, "bad number");
    if (real) v.type = V_FLOAT;
    add(l, real ? T_FLOAT : T_INTEGER, v);
    advance(l, end);
}

static size_t match_name(const lexer *l)
{
    size_t p = l->pos;
    while (p < l->n) {
        uint32_t c;
        size_t k = j_next_char(l->s + p, l->n - p, &c);
        bool letter = c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        bool later = is_digit((char)c) && c < 128;
        if (c >= 128) {
            utf8proc_category_t cat = utf8proc_category((utf8proc_int32_t)c);
            letter = (cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_LO) ||
                     cat == UTF8PROC_CATEGORY_NL;
            later = cat == UTF8PROC_CATEGORY_MN || cat == UTF8PROC_CATEGORY_MC ||
                    cat == UTF8PROC_CATEGORY_ND || cat == UTF8PROC_CATEGORY_PC;
        }
        if (!(letter || (later && p > l->pos))) break;
        p += k;
    }
    return p > l->pos ? p : 0;
}

static uint32_t hex_escape(lexer *l, const char *p, const char *end, int n)
{
    uint32_t c = 0;
    for (int i = 0; i < n; i++) {
        char x = p + i < end ? p[i] : 0;
        int d = is_digit(x)            ? x - '0'
                : x >= 'a' && x <= 'f' ? x - 'a' + 10
                : x >= 'A' && x <= 'F' ? x - 'A' + 10
                                       : -1;
        if (d < 0) {
            fail(l, n == 2   ? "truncated \\xXX escape"
                    : n == 4 ? "truncated \\uXXXX escape"
                             : "truncated \\UXXXXXXXX escape");
            return 0;
        }
        c = c << 4 | (uint32_t)d;
    }
    return c;
}

/* Python's escapes in a string literal. */
static value unescape(lexer *l, const char *p, const char *end)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    builder b;
    j_sb_init(&b, l->r);
    while (p < end) {
        const char *slash = memchr(p, '\\', (size_t)(end - p));
        if (!slash) slash = end;
        j_sb_raw(&b, p, (size_t)(slash - p), false);
        p = slash;
        if (p == end) break;
        char c = p[1];
        const char *known = c ? strchr(from, c) : NULL;
        p += 2;
        if (known) {
            j_sb_raw(&b, &to[known - from], 1, false);
        } else if (c == '\n') {
            continue;
        } else if (c >= '0' && c <= '7') {
            uint32_t o = 0;
            p--;
            for (int i = 0; i < 3 && p < end && *p >= '0' && *p <= '7'; i++)
                o = o * 8 + (uint32_t)(*p++ - '0');
            j_sb_char(&b, o, false);
        } else if (c == 'x' || c == 'u' || c == 'U') {
            int n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
            char utf8[4];
            uint32_t u = hex_escape(l, p, end, n);
            if (u > 0x10ffff)
                fail(l, "illegal Unicode character");
            else if (!utf8_encode(u, utf8))
                fail(l, "a surrogate in a string is not supported");
            else
                j_sb_char(&b, u, false);
            p += n;
        } else if (c == 'N') {
            fail(l, "\\N{…} in a string is not supported");
        } else {
            j_sb_raw(&b, p - 2, 2, false); // unknown escapes stay as they are
        }
    }
    str *s = j_sb_done(&b);
    s->buf = NULL; // shared by renderings: nobody may append in place
    jinja_len(l->r, s);
    return v_str(s);
}

static bool lex_string(lexer *l)
{
    char q = l->s[l->pos];
    if (q != '\'' && q != '"') return false;
    for (size_t p = l->pos + 1; p < l->n; p++) {
        if (l->s[p] == '\\') {
            p++;
        } else if (l->s[p] == q) {
            add(l, T_STRING, unescape(l, l->s + l->pos + 1, l->s + p));
            advance(l, p + 1);
            return true;
        }
    }
    return false;
}

static void balance(lexer *l, char c)
{
    char msg[64];
    char close = c == '(' ? ')' : c == '[' ? ']' : c == '{' ? '}' : 0;
    if (close) {
        if (l->n_open == l->cap_open) {
            char *more = jinja_alloc(l->r, 2 * l->cap_open + 64, 1);
            if (l->n_open) memcpy(more, l->open, l->n_open);
            l->open = more;
            l->cap_open = 2 * l->cap_open + 64;
        }
        l->open[l->n_open++] = close;
    } else if (c == ')' || c == ']' || c == '}') {
        if (!l->n_open) {
            snprintf(msg, sizeof msg, "unexpected '%c'", c);
            fail(l, msg);
            return;
        }
        char want = l->open[--l->n_open];
        if (want != c) {
            snprintf(msg, sizeof msg, "unexpected '%c', expected '%c'", c, want);
            fail(l, msg);
        }
    }
}

static void lex_operator(lexer *l)
{
    for (int i = 0; i < COUNT_OF(operators); i++) {
        if (!at(l, l->pos, operators[i].text)) continue;
        balance(l, operators[i].text[0]);
        add(l, operators[i].type, (value){ 0 });
        advance(l, l->pos + strlen(operators[i].text));
        return;
    }
    uint32_t c;
    size_t chars = 0, k = j_next_char(l->s + l->pos, l->n - l->pos, &c);
    for (size_t i = 0; i < l->pos; i++)
        chars += ((unsigned char)l->s[i] & 0xc0) != 0x80;
    str one = { .s = l->s + l->pos, .n = k, .n_chars = 1 };
    builder b;
    j_sb_init(&b, l->r);
    j_sb_lit(&b, "unexpected char ");
    j_sb_repr(&b, v_str(&one));
    j_sb_fmt(&b, " at %zu", chars);
    fail(l, j_sb_done(&b)->s);
}

static void lex_tag(lexer *l, bool block)
{
    while (l->pos < l->n && !l->failed) {
        size_t end = 0;
        if (!l->n_open && block) end = match_end(l, l->pos, "%}");
        if (!l->n_open && !block) {
            if (at(l, l->pos, "-}}"))
                end = skip_space(l, l->pos + 3);
            else if (at(l, l->pos, "}}"))
                end = l->pos + 2;
        }
        if (end) {
            add(l, block ? T_BLOCK_END : T_VARIABLE_END, (value){ 0 });
            advance(l, end);
            return;
        }
        size_t space = skip_space(l, l->pos);
        if (space > l->pos) {
            advance(l, space);
        } else if ((end = match_float(l))) {
            lex_number(l, end, true);
        } else if ((end = match_integer(l))) {
            lex_number(l, end, false);
        } else if ((end = match_name(l))) {
            add(l, T_NAME, text_value(l, l->s + l->pos, end - l->pos));
            advance(l, end);
        } else if (!lex_string(l)) {
            lex_operator(l);
        }
    }
}

/* Line ends become \n, and one at the end is dropped. */
static char *normalise(jrun *r, const char *text, size_t n, size_t *out_n)
{
    char *s = jinja_alloc(r, n + 1, 1);
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        s[k++] = text[i] == '\r' ? '\n' : text[i];
        if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n') i++;
    }
    if (k && s[k - 1] == '\n') k--;
    *out_n = k;
    return s;
}

void jinja_lex(jrun *r, tokens *out, const char *text, size_t n)
{
    lexer l = { .r = r, .out = out, .line = 1, .line_starting = true };
    l.s = normalise(r, text, n, &l.n);
    while (l.pos < l.n && !l.failed) {
        size_t p = l.pos;
        while (p < l.n &&
               !(l.s[p] == '{' && p + 1 < l.n && strchr("{%#", l.s[p + 1]) && l.s[p + 1]))
            p++;
        if (p == l.n) {
            add_data(&l, l.pos, l.n);
            advance(&l, l.n);
            break;
        }
        char kind = l.s[p + 1];
        size_t raw = kind == '%' ? match_raw(&l, p) : 0;
        size_t q = p + 2;
        char sign = q < l.n && (l.s[q] == '-' || l.s[q] == '+') ? l.s[q] : 0;
        add_data(&l, l.pos, strip_before(&l, l.pos, p, sign, kind == '{'));
        advance(&l, raw ? raw : q + (sign != 0));
        if (raw) {
            lex_raw(&l);
        } else if (kind == '#') {
            lex_comment(&l);
        } else {
            add(&l, kind == '%' ? T_BLOCK_BEGIN : T_VARIABLE_BEGIN, (value){ 0 });
            lex_tag(&l, kind == '%');
        }
    }
    add(&l, T_EOF, (value){ 0 });
}
