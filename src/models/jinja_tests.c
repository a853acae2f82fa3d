/*
 * jinja_tests.c: what comes after `is`.
 */
#include <math.h>
#include <string.h>

#include "models/jinja_impl.h"

#define TEST(name) static value name(jrun *r, value *a, const args *c)
#define UNUSED                                                                                     \
    (void)r;                                                                                       \
    (void)a;                                                                                       \
    (void)c

TEST(t_defined)
{
    UNUSED;
    return v_bool(a[0].type != V_UNDEFINED);
}
TEST(t_undefined)
{
    UNUSED;
    return v_bool(a[0].type == V_UNDEFINED);
}
TEST(t_none)
{
    UNUSED;
    return v_bool(a[0].type == V_NONE);
}
TEST(t_boolean)
{
    UNUSED;
    return v_bool(a[0].type == V_BOOL);
}
TEST(t_true)
{
    UNUSED;
    return v_bool(a[0].type == V_BOOL && a[0].u.b);
}
TEST(t_false)
{
    UNUSED;
    return v_bool(a[0].type == V_BOOL && !a[0].u.b);
}
TEST(t_integer)
{
    UNUSED;
    return v_bool(a[0].type == V_INT);
}
TEST(t_float)
{
    UNUSED;
    return v_bool(a[0].type == V_FLOAT);
}
TEST(t_number)
{
    UNUSED;
    return v_bool(j_is_number(a[0]));
}
TEST(t_string)
{
    UNUSED;
    return v_bool(a[0].type == V_STR);
}
TEST(t_mapping)
{
    UNUSED;
    return v_bool(a[0].type == V_DICT);
}
TEST(t_iterable)
{
    UNUSED;
    return v_bool(j_is_iterable(a[0]) || a[0].type == V_LOOP);
}
TEST(t_escaped)
{
    UNUSED;
    return v_bool(a[0].type == V_STR && a[0].u.s->markup);
}
TEST(t_lower)
{
    UNUSED;
    return v_bool(j_is_upper_lower(r, j_to_str(r, a[0]), false));
}
TEST(t_upper)
{
    UNUSED;
    return v_bool(j_is_upper_lower(r, j_to_str(r, a[0]), true));
}
TEST(t_filter)
{
    UNUSED;
    if (a[0].type == V_LIST || a[0].type == V_DICT)
        RAISE(r, "unhashable type: '%s'", j_type_name(a[0]));
    return v_bool(a[0].type == V_STR && j_find_filter(a[0].u.s));
}
TEST(t_test)
{
    UNUSED;
    if (a[0].type == V_LIST || a[0].type == V_DICT)
        RAISE(r, "unhashable type: '%s'", j_type_name(a[0]));
    return v_bool(a[0].type == V_STR && j_find_test(a[0].u.s));
}
TEST(t_in)
{
    UNUSED;
    return v_bool(j_contains(r, a[1], a[0]));
}
TEST(t_eq)
{
    UNUSED;
    return v_bool(j_equal(r, a[0], a[1]));
}
TEST(t_ne)
{
    UNUSED;
    return v_bool(!j_equal(r, a[0], a[1]));
}
TEST(t_lt)
{
    UNUSED;
    return v_bool(j_compare(r, a[0], a[1], OP_LT));
}
TEST(t_le)
{
    UNUSED;
    return v_bool(j_compare(r, a[0], a[1], OP_LE));
}
TEST(t_gt)
{
    UNUSED;
    return v_bool(j_compare(r, a[0], a[1], OP_GT));
}
TEST(t_ge)
{
    UNUSED;
    return v_bool(j_compare(r, a[0], a[1], OP_GE));
}

TEST(t_sequence)
{
    UNUSED;
    // Anything with a length and subscripts, even an undefined value.
    value_type t = a[0].type;
    return v_bool(t == V_UNDEFINED || (t >= V_STR && t <= V_RANGE));
}

TEST(t_callable)
{
    UNUSED;
    value_type t = a[0].type;
    return v_bool(t == V_UNDEFINED || t == V_FUNCTION || t == V_METHOD || t == V_MACRO ||
                  t == V_LOOP || t == V_JOINER);
}

TEST(t_sameas)
{
    UNUSED;
    value x = a[0], y = a[1];
    if (x.type != y.type) return v_bool(false);
    switch (x.type) {
    case V_NONE: return v_bool(true);
    case V_BOOL: return v_bool(x.u.b == y.u.b);
    case V_INT:
        return v_bool(x.u.i == y.u.i && x.u.i >= -5 && x.u.i <= 256); // Python's shared ints
    case V_FLOAT: return v_bool(false);
    case V_STR: return v_bool(x.u.s == y.u.s || (x.u.s->s == y.u.s->s && x.u.s->n == y.u.s->n));
    default: return v_bool(x.u.l == y.u.l);
    }
}

TEST(t_divisibleby)
{
    UNUSED;
    return v_bool(j_equal(r, j_binary(r, OP_MOD, a[0], a[1]), v_int(0)));
}
TEST(t_odd)
{
    UNUSED;
    return v_bool(j_equal(r, j_binary(r, OP_MOD, a[0], v_int(2)), v_int(1)));
}
TEST(t_even)
{
    UNUSED;
    return v_bool(j_equal(r, j_binary(r, OP_MOD, a[0], v_int(2)), v_int(0)));
}

static const builtin tests[] = {
    { "odd", t_odd, "value" },
    { "even", t_even, "value" },
    { "divisibleby", t_divisibleby, "value num" },
    { "defined", t_defined, "value" },
    { "undefined", t_undefined, "value" },
    { "filter", t_filter, "value" },
    { "test", t_test, "value" },
    { "none", t_none, "value" },
    { "boolean", t_boolean, "value" },
    { "false", t_false, "value" },
    { "true", t_true, "value" },
    { "integer", t_integer, "value" },
    { "float", t_float, "value" },
    { "lower", t_lower, "value" },
    { "upper", t_upper, "value" },
    { "string", t_string, "value" },
    { "mapping", t_mapping, "value" },
    { "number", t_number, "value" },
    { "sequence", t_sequence, "value" },
    { "iterable", t_iterable, "value" },
    { "callable", t_callable, "value" },
    { "sameas", t_sameas, "value other" },
    { "escaped", t_escaped, "value" },
    { "in", t_in, "value seq" },
    { "==", t_eq, "/a b" },
    { "eq", t_eq, "/a b" },
    { "equalto", t_eq, "/a b" },
    { "!=", t_ne, "/a b" },
    { "ne", t_ne, "/a b" },
    { ">", t_gt, "/a b" },
    { "gt", t_gt, "/a b" },
    { "greaterthan", t_gt, "/a b" },
    { ">=", t_ge, "/a b" },
    { "ge", t_ge, "/a b" },
    { "<", t_lt, "/a b" },
    { "lt", t_lt, "/a b" },
    { "lessthan", t_lt, "/a b" },
    { "<=", t_le, "/a b" },
    { "le", t_le, "/a b" },
};

const builtin *j_find_test(const str *name)
{
    for (int i = 0; i < COUNT_OF(tests); i++)
        if (j_str_is(name, tests[i].name)) return &tests[i];
    return NULL;
}
