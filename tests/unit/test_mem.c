/* test_mem.c: overflow, counting, failing on purpose, pages. */
#include "test.h"

#include "base/mem.h"

static void sizes_overflow_to_null(void **state)
{
    (void)state;
    size_t product;
    assert_null(mem_alloc(SIZE_MAX, 2));
    assert_null(mem_zero(SIZE_MAX / 2 + 1, 2));
    assert_null(mem_resize(NULL, (size_t)1 << 63, 16));
    assert_null(mem_pages(SIZE_MAX));
    assert_false(mem_mul(SIZE_MAX, 2, &product));
    assert_true(mem_mul(3, 4, &product));
    assert_int_equal(product, 12);
}

static void nothing_is_something(void **state)
{
    (void)state;
    void *p = mem_alloc(0, 8), *q = mem_zero(8, 0), *pages = mem_pages(0);
    assert_non_null(p);
    assert_non_null(q);
    assert_non_null(pages);
    p = mem_resize(p, 0, 4);
    assert_non_null(p);
    mem_free(p);
    mem_free(q);
    mem_free(NULL);
    mem_free_pages(pages, 0);
    mem_free_pages(NULL, 7);
}

static void zero_and_copies(void **state)
{
    (void)state;
    unsigned char *z = mem_zero(100, 3);
    for (int i = 0; i < 300; i++)
        assert_int_equal(z[i], 0);
    mem_free(z);
    char *s = mem_strdup("abc"), *t = mem_strndup("abcdef", 2), *u = mem_strndup("x", 100);
    assert_string_equal(s, "abc");
    assert_string_equal(t, "ab");
    assert_string_equal(u, "x");
    s = mem_resize(s, 100, 10);
    assert_string_equal(s, "abc");
    mem_free(s);
    mem_free(t);
    mem_free(u);
}

static void pages_are_lazy(void **state)
{
    (void)state;
    size_t size = (size_t)64 << 30; // more than the machine has
    unsigned char *p = mem_pages(size);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 4096, 0);
    assert_int_equal(p[0] | p[size / 2] | p[size - 1], 0);
    p[size - 1] = 1;
    mem_free_pages(p, size);
}

static void the_nth_allocation_fails(void **state)
{
    (void)state;
    for (int kind = 0; kind < 6; kind++) {
        void *kept = mem_alloc(4, 4), *p = NULL;
        mem_fail_at(mem_count() + 2);
        void *first = mem_alloc(1, 1);
        assert_non_null(first);
        uint64_t before = mem_count();
        if (kind == 0) p = mem_alloc(1, 1);
        if (kind == 1) p = mem_zero(1, 1);
        if (kind == 2) p = mem_resize(kept, 1, 1); // kept stays valid
        if (kind == 3) p = mem_strdup("a");
        if (kind == 4) p = mem_strndup("a", 1);
        if (kind == 5) p = mem_pages(1);
        assert_null(p);
        assert_int_equal(mem_count(), before + 1);
        void *third = mem_alloc(1, 1); // only that one failed
        assert_non_null(third);
        mem_fail_at(0);
        mem_free(first);
        mem_free(third);
        mem_free(kept);
    }
}

static void reserve_doubles(void **state)
{
    (void)state;
    infer_error err;
    int *items = NULL;
    size_t cap = 0;
    uint64_t before = mem_count();
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(mem_reserve((void **)&items, &cap, (size_t)i + 1, sizeof *items, &err), 0);
        items[i] = i;
    }
    for (int i = 0; i < 1000; i++)
        assert_int_equal(items[i], i);
    assert_in_range(mem_count() - before, 1, 12);

    int *same = items;
    size_t same_cap = cap;
    assert_int_equal(mem_reserve((void **)&items, &cap, SIZE_MAX / 2, 8, &err), INFER_NOMEM);
    assert_int_equal(err.code, INFER_NOMEM);
    mem_fail_at(mem_count() + 1);
    assert_int_equal(mem_reserve((void **)&items, &cap, cap + 1, sizeof *items, NULL), INFER_NOMEM);
    mem_fail_at(0);
    assert_ptr_equal(items, same);
    assert_int_equal(cap, same_cap);
    mem_free(items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_overflow_to_null),   cmocka_unit_test(nothing_is_something),
        cmocka_unit_test(zero_and_copies),          cmocka_unit_test(pages_are_lazy),
        cmocka_unit_test(the_nth_allocation_fails), cmocka_unit_test(reserve_doubles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
