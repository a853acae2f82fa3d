/*
 * jinja_format.c: Python's two ways to fill text with values, "…%s…" % x and "…{}…".format(x), and
 * the directives of strftime.
 */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/jinja_impl.h"

/* ---- numbers in a format ------------------------------------------------------------------- */

typedef struct spec {
    uint32_t fill;
    char align; // '<' '>' '^' '=', 0: the type's own
    char sign;  // '-' '+' ' '
    bool alternate, zero;
    int64_t width, precision; // precision -1: none
    char comma;               // ',' '_' or 0
    char type;                // 0: none
} spec;

static void check_width(jrun *r, int64_t n)
{
    if (n > (int64_t)r->max_text)
        jinja_fail(r, INFER_LIMIT, "the template makes text of more than %zu bytes", r->max_text);
}

/* Pads text to the spec's width; for '=' the padding goes behind the sign. */
static void pad(builder *b, const spec *p, const str *text, char align)
{
    int64_t n = p->width - jinja_len(b->r, text);
    if (p->align) align = p->align;
    check_width(b->r, n);
    if (n < 0) n = 0;
    jinja_step(b->r, (uint64_t)n / 16);
    int64_t left = align == '<' ? 0 : align == '^' ? n / 2 : n;
    size_t sign = align == '=' && text->n && strchr("+- ", text->s[0]) ? 1 : 0;
    if (align == '=' && text->n >= sign + 2 && p->alternate && text->s[sign] == '0') sign += 2;
    if (align == '=')
        j_sb_part(b, text, 0, sign);
    else
        sign = 0;
    for (int64_t i = 0; i < left; i++)
        j_sb_char(b, p->fill, false);
    j_sb_part(b, text, sign, text->n);
    for (int64_t i = left; i < n; i++)
        j_sb_char(b, p->fill, false);
}

/* Thousands marks in the digits before the point. */
static void group_digits(builder *b, const char *digits, size_t whole, char comma, int every)
{
    for (size_t i = 0; i < whole; i++) {
        if (i && (whole - i) % (size_t)every == 0) j_sb_raw(b, &comma, 1, false);
        j_sb_raw(b, digits + i, 1, false);
    }
}

static str *int_text(jrun *r, const spec *p, int64_t i)
{
    builder b;
    j_sb_init(&b, r);
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    if (i < 0)
        j_sb_lit(&b, "-");
    else if (p->sign != '-')
        j_sb_raw(&b, &p->sign, 1, false);
    char out[72];
    int n = 0;
    uint64_t base = p->type == 'x' || p->type == 'X' ? 16
                    : p->type == 'o'                 ? 8
                    : p->type == 'b'                 ? 2
                                                     : 10;
    if (p->alternate && base != 10) {
        char prefix[2] = { '0', p->type };
        j_sb_raw(&b, prefix, 2, false);
    }
    do {
        out[71 - n++] = (p->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[u % base];
    } while (u /= base);
    if (p->comma)
        group_digits(&b, out + 72 - n, (size_t)n, p->comma, base == 10 ? 3 : 4);
    else
        j_sb_raw(&b, out + 72 - n, (size_t)n, false);
    return j_sb_done(&b);
}

/* A finite magnitude in Python's float formats. */
static void float_digits(jrun *r, char out[400], const spec *p, double f, bool percent_style)
{
    char type = p->type;
    int precision = p->precision < 0 ? 6 : (int)p->precision;
    if (precision > 300)
        jinja_fail(r, INFER_LIMIT, "a precision of more than 300 is not supported");
    if (!type && p->precision < 0) {
        j_float_repr(out, f);
        return;
    }
    if (f > 1e90 && (type == 'f' || type == 'F' || type == '%'))
        jinja_fail(r, INFER_LIMIT, "a number of more than 90 digits is not supported");
    char fmt[16];
    bool plain = !type; // like g, but with at least one digit after the point
    snprintf(fmt, sizeof fmt, "%%%s.*%c", p->alternate ? "#" : "",
             type == '%'            ? 'f'
             : plain || type == 'n' ? 'g'
                                    : type);
    if ((plain || type == 'g' || type == 'G' || type == 'n') && !precision) precision = 1;
        // fmt holds one of a few fixed forms.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(out, 400, fmt, precision, type == '%' ? f * 100 : f);
#pragma GCC diagnostic pop
    if (plain && !percent_style && !strpbrk(out, ".e")) strcat(out, ".0");
}

static str *float_text(jrun *r, const spec *p, double f)
{
    builder b;
    j_sb_init(&b, r);
    char out[400];
    if (signbit(f) && !isnan(f))
        j_sb_lit(&b, "-");
    else if (p->sign != '-')
        j_sb_raw(&b, &p->sign, 1, false);
    bool upper = p->type == 'F' || p->type == 'E' || p->type == 'G';
    if (!isfinite(f))
        j_sb_lit(&b, isnan(f) ? (upper ? "NAN" : "nan") : upper ? "INF" : "inf");
    else {
        float_digits(r, out, p, fabs(f), false);
        size_t whole = strspn(out, "0123456789");
        if (p->comma)
            group_digits(&b, out, whole, p->comma, 3);
        else
            j_sb_raw(&b, out, whole, false);
        j_sb_lit(&b, out + whole);
    }
    if (p->type == '%') j_sb_lit(&b, "%");
    return j_sb_done(&b);
}

/* ---- % ------------------------------------------------------------------------------------- */

typedef struct percent {
    jrun *r;
    builder b;
    value arg;
    size_t next; // of a tuple
    bool used;   // of a single value
} percent;

static value percent_arg(percent *p)
{
    if (p->arg.type == V_TUPLE) {
        if (p->next >= p->arg.u.l->n) RAISE(p->r, "not enough arguments for format string");
        return p->arg.u.l->v[p->next++];
    }
    if (p->used) RAISE(p->r, "not enough arguments for format string");
    p->used = true;
    return p->arg;
}

static void percent_number(percent *p, spec *s, value v)
{
    jrun *r = p->r;
    bool integer = strchr("diuxXo", s->type) != NULL;
    if (v.type == V_UNDEFINED && !strchr("xXo", s->type)) j_fail_undefined(r, v);
    if (!j_is_number(v) || (v.type == V_FLOAT && strchr("xXo", s->type))) {
        if (!integer) RAISE(r, "must be real number, not %s", j_type_name(v));
        RAISE(r, "%%%c format: %s is required, not %s", s->type,
              strchr("xXo", s->type) ? "an integer" : "a real number", j_type_name(v));
    }
    char align = s->zero ? '=' : s->align == '<' ? '<' : '>';
    if (s->zero) s->fill = '0';
    s->align = 0;
    if (integer) {
        double f = j_as_double(v);
        if (v.type == V_FLOAT && !(f > -0x1p63 && f < 0x1p63))
            RAISE(r, "cannot convert float to a 64-bit integer");
        int64_t i = v.type == V_FLOAT ? (int64_t)f : j_need_int(r, v);
        if (strchr("iu", s->type)) s->type = 'd';
        str *t = int_text(r, s, i);
        if (s->precision > (int64_t)t->n - (i < 0)) { // a precision is the least number of digits
            check_width(r, s->precision);
            value z[2] = { v_str(t), v_int(s->precision + (i < 0 || s->sign != '-')) };
            t = j_find_method(z[0], j_str_lit(r, "zfill"))->fn(r, z, NULL).u.s;
        }
        pad(&p->b, s, t, align);
    } else {
        if (s->precision < 0) s->precision = 6;
        pad(&p->b, s, float_text(r, s, j_as_double(v)), align);
    }
}

static void percent_one(percent *p, spec *s, value v)
{
    jrun *r = p->r;
    str *t;
    switch (s->type) {
    case 's': t = j_to_str(r, v); break;
    case 'r':
    case 'a': t = j_repr(r, v); break;
    case 'c':
        if (v.type == V_STR && jinja_len(r, v.u.s) == 1) {
            t = v.u.s;
            break;
        }
        if (v.type == V_INT || v.type == V_BOOL) {
            builder one;
            int64_t code = j_need_int(r, v);
            if (code < 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
                RAISE(r, "%%c arg not in range(0x110000)");
            j_sb_init(&one, r);
            j_sb_char(&one, (uint32_t)code, false);
            t = j_sb_done(&one);
            break;
        }
        if (v.type == V_UNDEFINED) j_fail_undefined(r, v);
        RAISE(r, "%%c requires int or char");
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G': percent_number(p, s, v); return;
    default: RAISE(r, "unsupported format character '%c' (0x%x)", s->type, (unsigned char)s->type);
    }
    if (s->precision >= 0) t = j_str_part(r, t, 0, j_char_offset(r, t, s->precision));
    pad(&p->b, s, t, s->align == '<' ? '<' : '>');
}

static int64_t percent_width(percent *p, const str *f, size_t *i)
{
    int64_t n = 0;
    if (*i < f->n && f->s[*i] == '*') {
        ++*i;
        value v = percent_arg(p);
        if (v.type != V_INT) RAISE(p->r, "* wants int");
        return v.u.i;
    }
    for (; *i < f->n && isdigit((unsigned char)f->s[*i]); ++*i) {
        n = n * 10 + f->s[*i] - '0';
        check_width(p->r, n);
    }
    return n;
}

value j_format_percent(jrun *r, str *f, value arg)
{
    percent p = { .r = r, .arg = arg };
    j_sb_init(&p.b, r);
    size_t i = 0;
    bool mapping = false;
    while (i < f->n) {
        const char *mark = memchr(f->s + i, '%', f->n - i);
        size_t at = mark ? (size_t)(mark - f->s) : f->n;
        j_sb_part(&p.b, f, i, at);
        i = at + 1;
        if (!mark) break;
        jinja_step(r, 1);
        spec s = { .fill = ' ', .sign = '-', .precision = -1 };
        value v = { 0 };
        if (i < f->n && f->s[i] == '(') {
            size_t end = i + 1;
            for (int open = 1; end < f->n; end++) {
                open += f->s[end] == '(' ? 1 : f->s[end] == ')' ? -1 : 0;
                if (!open) break;
            }
            if (end >= f->n) RAISE(r, "incomplete format key");
            if (arg.type == V_UNDEFINED) j_fail_undefined(r, arg);
            if (arg.type == V_LIST || arg.type == V_RANGE)
                RAISE(r, "%s indices must be integers or slices, not str", j_type_name(arg));
            if (arg.type != V_DICT) RAISE(r, "format requires a mapping");
            value key = v_str(j_str_part(r, f, i + 1, end));
            value *found = j_dict_find(r, arg.u.d, key);
            if (!found) RAISE(r, "%s", j_repr(r, key)->s);
            v = *found;
            mapping = true;
            i = end + 1;
        }
        for (; i < f->n && strchr("-+ #0", f->s[i]) && f->s[i]; i++) {
            char c = f->s[i];
            if (c == '-') s.align = '<';
            if (c == '+' || (c == ' ' && s.sign != '+')) s.sign = c;
            s.alternate |= c == '#';
            s.zero |= c == '0';
        }
        if (s.align == '<') s.zero = false;
        s.width = percent_width(&p, f, &i);
        if (s.width < 0) {
            s.width = -s.width;
            s.align = '<';
        }
        if (i < f->n && f->s[i] == '.') {
            i++;
            s.precision = percent_width(&p, f, &i);
            if (s.precision < 0) s.precision = 0;
        }
        while (i < f->n && (f->s[i] == 'l' || f->s[i] == 'h' || f->s[i] == 'L'))
            i++;
        if (i >= f->n) RAISE(r, "incomplete format");
        s.type = f->s[i++];
        if (s.type == '%') {
            j_sb_lit(&p.b, "%");
            continue;
        }
        if (!v_given(v)) v = percent_arg(&p);
        if (f->markup) v = v_str(j_escape_html(r, v));
        percent_one(&p, &s, v);
    }
    bool left = arg.type == V_TUPLE ? p.next < arg.u.l->n
                                    : arg.type != V_DICT && arg.type != V_LIST &&
                                          arg.type != V_UNDEFINED && arg.type != V_RANGE && !p.used;
    if (left && !mapping) RAISE(r, "not all arguments converted during string formatting");
    str *out = j_sb_done(&p.b);
    out->markup = f->markup;
    return v_str(out);
}

/* ---- {} ------------------------------------------------------------------------------------ */

static spec parse_spec(jrun *r, const str *t)
{
    spec s = { .fill = ' ', .sign = '-', .precision = -1 };
    size_t i = 0;
    if (t->n) {
        uint32_t c;
        size_t k = j_next_char(t->s, t->n, &c);
        if (k < t->n && strchr("<>=^", t->s[k]) && t->s[k]) {
            s.fill = c;
            s.align = t->s[k];
            i = k + 1;
        } else if (strchr("<>=^", t->s[0]) && t->s[0]) {
            s.align = t->s[0];
            i = 1;
        }
    }
    if (i < t->n && (t->s[i] == '+' || t->s[i] == '-' || t->s[i] == ' ')) s.sign = t->s[i++];
    if (i < t->n && t->s[i] == '#') s.alternate = ++i;
    if (i < t->n && t->s[i] == '0') {
        i++;
        s.zero = true;
        if (!s.align) {
            s.fill = '0';
            s.align = '=';
        } else if (s.fill == ' ') {
            s.fill = '0';
        }
    }
    for (; i < t->n && isdigit((unsigned char)t->s[i]); i++) {
        s.width = s.width * 10 + t->s[i] - '0';
        check_width(r, s.width);
    }
    if (i < t->n && (t->s[i] == ',' || t->s[i] == '_')) s.comma = t->s[i++];
    if (i < t->n && t->s[i] == '.') {
        if (++i >= t->n || !isdigit((unsigned char)t->s[i]))
            RAISE(r, "Format specifier missing precision");
        for (s.precision = 0; i < t->n && isdigit((unsigned char)t->s[i]); i++) {
            s.precision = s.precision * 10 + t->s[i] - '0';
            check_width(r, s.precision);
        }
    }
    if (i < t->n) s.type = t->s[i++];
    if (i < t->n) RAISE(r, "Invalid format specifier");
    return s;
}

static _Noreturn void fail_code(jrun *r, char c, value v)
{
    RAISE(r, "Unknown format code '%c' for object of type '%s'", c, j_type_name(v));
}

/* format(v, spec) */
static void format_value(jrun *r, builder *b, value v, const str *text)
{
    if (!text->n) {
        j_sb_value(b, v);
        return;
    }
    if (v.type != V_STR && !j_is_number(v))
        RAISE(r, "unsupported format string passed to %s.__format__", j_type_name(v));
    spec s = parse_spec(r, text);
    if (v.type == V_STR) {
        if (s.comma) RAISE(r, "Cannot specify '%c' with 's'.", s.comma);
        if (s.type && s.type != 's') fail_code(r, s.type, v);
        if (s.sign != '-') RAISE(r, "Sign not allowed in string format specifier");
        if (s.align == '=' && !s.zero)
            RAISE(r, "'=' alignment not allowed in string format specifier");
        if (s.align == '=') s.align = 0;
        str *t = v.u.s;
        if (s.precision >= 0) t = j_str_part(r, t, 0, j_char_offset(r, t, s.precision));
        pad(b, &s, t, '<');
        return;
    }
    if (s.type == 's') fail_code(r, s.type, v);
    if (v.type == V_BOOL && !s.type) { // bool formats as int
        v = v_int(v.u.b);
    }
    bool as_float = v.type == V_FLOAT || (s.type && strchr("eEfFgG%", s.type));
    if (s.type == 'n') s.type = as_float ? 'g' : 'd';
    if (as_float) {
        if (s.type && !strchr("eEfFgG%", s.type)) fail_code(r, s.type, v);
        if (!s.type && s.precision >= 0) {
            // Like g, but an exponent is used from one digit less on and ".0" is kept.
            double f = j_as_double(v);
            char probe[64];
            int p = s.precision ? (int)(s.precision > 40 ? 40 : s.precision) : 1;
            snprintf(probe, sizeof probe, "%.*e", p - 1, f);
            int exp = strchr(probe, 'e') ? atoi(strchr(probe, 'e') + 1) : 0;
            if (isfinite(f) && f != 0 && exp == p - 1) {
                s.type = 'e';
                s.precision = p - 1;
                str *t = float_text(r, &s, f);
                // Trailing zeros of the mantissa go, as in g.
                size_t e = 0;
                while (e < t->n && t->s[e] != 'e')
                    e++;
                size_t m = e;
                while (memchr(t->s, '.', m) && t->s[m - 1] == '0')
                    m--;
                if (m && t->s[m - 1] == '.') m--;
                builder x;
                j_sb_init(&x, r);
                j_sb_part(&x, t, 0, m);
                j_sb_part(&x, t, e, t->n);
                pad(b, &s, j_sb_done(&x), '>');
                return;
            }
        }
        pad(b, &s, float_text(r, &s, j_as_double(v)), '>');
        return;
    }
    if (s.type == 'c') {
        int64_t i = j_need_int(r, v);
        if (i < 0 || i > 0x10ffff || (i >= 0xd800 && i < 0xe000))
            RAISE(r, "%%c arg not in range(0x110000)");
        builder x;
        j_sb_init(&x, r);
        j_sb_char(&x, (uint32_t)i, false);
        pad(b, &s, j_sb_done(&x), '<');
        return;
    }
    if (s.type && !strchr("dxXob", s.type)) fail_code(r, s.type, v);
    if (s.precision >= 0) RAISE(r, "Precision not allowed in integer format specifier");
    pad(b, &s, int_text(r, &s, j_need_int(r, v)), '>');
}

typedef struct braces {
    jrun *r;
    const args *call;
    int next; // automatic index; -1: explicit ones were used
} braces;

/* "0", "name" or "", then ".attr" and "[item]" parts. */
static value field_value(braces *p, str *name)
{
    jrun *r = p->r;
    size_t i = 0;
    while (i < name->n && name->s[i] != '.' && name->s[i] != '[')
        i++;
    str *first = j_str_part(r, name, 0, i);
    bool digits = true;
    int64_t index = 0;
    for (size_t k = 0; k < first->n; k++)
        digits &= isdigit((unsigned char)first->s[k]) != 0;
    value v = { 0 };
    if (digits) {
        if (!first->n) {
            if (p->next < 0)
                RAISE(r,
                      "cannot switch from manual field specification to automatic field numbering");
            index = p->next++;
        } else {
            if (p->next > 0)
                RAISE(r,
                      "cannot switch from automatic field numbering to manual field specification");
            p->next = -1;
            j_parse_int(r, first, 10, &index);
        }
        if (index >= p->call->n) RAISE(r, "tuple index out of range");
        v = p->call->v[index];
    } else {
        for (int k = 0; k < p->call->n_kw; k++)
            if (!j_str_cmp(p->call->kw[k].name, first)) v = p->call->kw[k].v;
        if (!v_given(v)) RAISE(r, "%s", j_repr(r, v_str(first))->s);
    }
    while (i < name->n) {
        bool attr = name->s[i] == '.';
        size_t from = ++i;
        while (i < name->n && (attr ? name->s[i] != '.' && name->s[i] != '[' : name->s[i] != ']'))
            i++;
        str *key = j_str_part(r, name, from, i);
        if (!key->n) RAISE(r, "Empty attribute in format string");
        if (!attr && i++ >= name->n) RAISE(r, "Missing ']' in format string");
        if (!attr && i < name->n && name->s[i] != '.' && name->s[i] != '[')
            RAISE(r, "Only '.' or '[' may follow ']' in format field specifier");
        digits = true;
        for (size_t k = 0; k < key->n; k++)
            digits &= isdigit((unsigned char)key->s[k]) != 0;
        if (attr)
            v = j_get_attr(r, v, key);
        else if (digits && j_parse_int(r, key, 10, &index))
            v = j_get_item(r, v, v_int(index));
        else
            v = j_get_item(r, v, v_str(key));
    }
    return v;
}

static void fill_braces(braces *p, builder *b, str *f, int depth);

static void fill_field(braces *p, builder *b, str *field, int depth)
{
    jrun *r = p->r;
    size_t name_end = 0;
    for (bool in = false; name_end < field->n; name_end++) {
        char c = field->s[name_end];
        in = c == '[' ? true : c == ']' ? false : in;
        if (!in && (c == '!' || c == ':')) break;
    }
    value v = field_value(p, j_str_part(r, field, 0, name_end));
    size_t i = name_end;
    if (i < field->n && field->s[i] == '!') {
        char how = i + 1 < field->n ? field->s[i + 1] : 0;
        i += 2;
        if (i < field->n && field->s[i] != ':') RAISE(r, "expected ':' after conversion specifier");
        if (how == 's')
            v = v_str(j_to_str(r, v));
        else if (how == 'r' || how == 'a')
            v = v_str(j_repr(r, v));
        else
            RAISE(r, "Unknown conversion specifier '%c'", how ? how : '?');
    }
    builder spec_text;
    j_sb_init(&spec_text, r);
    if (i < field->n) fill_braces(p, &spec_text, j_str_part(r, field, i + 1, field->n), depth + 1);
    format_value(r, b, v, j_sb_done(&spec_text));
}

static void fill_braces(braces *p, builder *b, str *f, int depth)
{
    jrun *r = p->r;
    if (depth > 2) RAISE(r, "Max string recursion exceeded");
    for (size_t i = 0; i < f->n; i++) {
        char c = f->s[i];
        jinja_step(r, 1);
        if ((c == '{' || c == '}') && i + 1 < f->n && f->s[i + 1] == c) {
            j_sb_part(b, f, i, i + 1);
            i++;
        } else if (c == '}') {
            RAISE(r, "Single '}' encountered in format string");
        } else if (c == '{') {
            size_t from = i + 1;
            int open = 1;
            for (i++; i < f->n; i++) {
                open += f->s[i] == '{' ? 1 : f->s[i] == '}' ? -1 : 0;
                if (!open) break;
            }
            if (open)
                RAISE(r, from >= f->n ? "Single '{' encountered in format string"
                                      : "expected '}' before end of string");
            fill_field(p, b, j_str_part(r, f, from, i), depth);
        } else {
            j_sb_part(b, f, i, i + 1);
        }
    }
}

value j_format_braces(jrun *r, str *f, const args *call)
{
    braces p = { r, call, 0 };
    builder b;
    j_sb_init(&b, r);
    args escaped = *call;
    if (f->markup) { // Markup escapes what is filled in
        escaped.v = jinja_alloc(r, (size_t)call->n, sizeof *escaped.v);
        for (int i = 0; i < call->n; i++)
            escaped.v[i] = v_str(j_escape_html(r, call->v[i]));
        escaped.kw = jinja_alloc(r, (size_t)call->n_kw, sizeof *escaped.kw);
        for (int i = 0; i < call->n_kw; i++)
            escaped.kw[i] = (kwarg){ call->kw[i].name, v_str(j_escape_html(r, call->kw[i].v)) };
        p.call = &escaped;
    }
    fill_braces(&p, &b, f, 0);
    str *out = j_sb_done(&b);
    out->markup = f->markup;
    return v_str(out);
}

/* ---- strftime ------------------------------------------------------------------------------ */

/* Days since the year began, counted in weeks that start on `first` (0 Sunday, 1 Monday). */
static int week_of_year(const struct tm *t, int first)
{
    return (t->tm_yday + 7 - (t->tm_wday - first + 7) % 7) / 7;
}

/* ISO 8601 week and its year. */
static int iso_week(const struct tm *t, int *year)
{
    int weekday = (t->tm_wday + 6) % 7, y = t->tm_year + 1900;
    int week = (t->tm_yday - weekday + 10) / 7;
    bool leap = (y % 4 == 0 && y % 100) || y % 400 == 0;
    if (week < 1) {
        y--;
        leap = (y % 4 == 0 && y % 100) || y % 400 == 0;
        week = (t->tm_yday + 365 + leap - weekday + 10) / 7;
    } else if (week == 53 && t->tm_yday - weekday + 3 >= 365 + leap) {
        week = 1;
        y++;
    }
    *year = y;
    return week;
}

static void time_part(builder *b, const struct tm *t, char c)
{
    static const char *const days[] = { "Sunday",   "Monday", "Tuesday", "Wednesday",
                                        "Thursday", "Friday", "Saturday" };
    static const char *const months[] = { "January",   "February", "March",    "April",
                                          "May",       "June",     "July",     "August",
                                          "September", "October",  "November", "December" };
    const char *day = days[(unsigned)t->tm_wday % 7], *month = months[(unsigned)t->tm_mon % 12];
    int hour12 = t->tm_hour % 12 ? t->tm_hour % 12 : 12, year = t->tm_year + 1900, iso_year;
    int week = iso_week(t, &iso_year);
    switch (c) {
    case 'a': j_sb_fmt(b, "%.3s", day); break;
    case 'A': j_sb_lit(b, day); break;
    case 'b':
    case 'h': j_sb_fmt(b, "%.3s", month); break;
    case 'B': j_sb_lit(b, month); break;
    case 'c':
        j_sb_fmt(b, "%.3s %.3s %2d %02d:%02d:%02d %d", day, month, t->tm_mday, t->tm_hour,
                 t->tm_min, t->tm_sec, year);
        break;
    case 'C': j_sb_fmt(b, "%02d", year / 100); break;
    case 'd': j_sb_fmt(b, "%02d", t->tm_mday); break;
    case 'D':
    case 'x': j_sb_fmt(b, "%02d/%02d/%02d", t->tm_mon + 1, t->tm_mday, year % 100); break;
    case 'e': j_sb_fmt(b, "%2d", t->tm_mday); break;
    case 'f': j_sb_lit(b, "000000"); break;
    case 'F': j_sb_fmt(b, "%d-%02d-%02d", year, t->tm_mon + 1, t->tm_mday); break;
    case 'g': j_sb_fmt(b, "%02d", iso_year % 100); break;
    case 'G': j_sb_fmt(b, "%d", iso_year); break;
    case 'H': j_sb_fmt(b, "%02d", t->tm_hour); break;
    case 'I': j_sb_fmt(b, "%02d", hour12); break;
    case 'j': j_sb_fmt(b, "%03d", t->tm_yday + 1); break;
    case 'k': j_sb_fmt(b, "%2d", t->tm_hour); break;
    case 'l': j_sb_fmt(b, "%2d", hour12); break;
    case 'm': j_sb_fmt(b, "%02d", t->tm_mon + 1); break;
    case 'M': j_sb_fmt(b, "%02d", t->tm_min); break;
    case 'n': j_sb_lit(b, "\n"); break;
    case 'p': j_sb_lit(b, t->tm_hour < 12 ? "AM" : "PM"); break;
    case 'P': j_sb_lit(b, t->tm_hour < 12 ? "am" : "pm"); break;
    case 'r':
        j_sb_fmt(b, "%02d:%02d:%02d %s", hour12, t->tm_min, t->tm_sec,
                 t->tm_hour < 12 ? "AM" : "PM");
        break;
    case 'R': j_sb_fmt(b, "%02d:%02d", t->tm_hour, t->tm_min); break;
    case 'S': j_sb_fmt(b, "%02d", t->tm_sec); break;
    case 't': j_sb_lit(b, "\t"); break;
    case 'T':
    case 'X': j_sb_fmt(b, "%02d:%02d:%02d", t->tm_hour, t->tm_min, t->tm_sec); break;
    case 'u': j_sb_fmt(b, "%d", t->tm_wday ? t->tm_wday : 7); break;
    case 'U': j_sb_fmt(b, "%02d", week_of_year(t, 0)); break;
    case 'V': j_sb_fmt(b, "%02d", week); break;
    case 'w': j_sb_fmt(b, "%d", t->tm_wday); break;
    case 'W': j_sb_fmt(b, "%02d", week_of_year(t, 1)); break;
    case 'y': j_sb_fmt(b, "%02d", year % 100); break;
    case 'Y': j_sb_fmt(b, "%d", year); break;
    case 'z':
    case 'Z': break; // a time without a zone, as in Python
    case '%': j_sb_lit(b, "%"); break;
    default:
        j_sb_lit(b, "%");
        j_sb_raw(b, &c, 1, false);
        break;
    }
}

str *j_format_time(jrun *r, const str *f, const struct tm *t)
{
    builder b;
    j_sb_init(&b, r);
    for (size_t i = 0; i < f->n; i++) {
        jinja_step(r, 1);
        if (f->s[i] != '%' || i + 1 >= f->n) {
            j_sb_part(&b, f, i, i + 1);
            continue;
        }
        bool bare = f->s[i + 1] == '-' && i + 2 < f->n; // glibc: no padding
        size_t at = b.b->n;
        i += bare ? 2 : 1;
        if ((unsigned char)f->s[i] >= 128)
            jinja_fail(r, INFER_UNSUPPORTED, "strftime: only ASCII directives are known");
        time_part(&b, t, f->s[i]);
        if (!bare) continue;
        size_t zeros = 0, n = b.b->n - at;
        if (n == 0) continue; // the directive wrote nothing, and the buffer may not exist yet
        while (zeros + 1 < n && (b.b->s[at + zeros] == '0' || b.b->s[at + zeros] == ' '))
            zeros++;
        memmove(b.b->s + at, b.b->s + at + zeros, n - zeros);
        b.b->n -= zeros;
    }
    return j_sb_done(&b);
}
