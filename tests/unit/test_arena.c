/* test_arena.c: alignment, scopes, and a loop that stops allocating. */
#include "test.h"

#include "base/arena.h"
#include "base/mem.h"

static void blocks_are_aligned_and_apart(void **state)
{
    (void)state;
    arena a = { 0 };
    unsigned char *p[300];
    for (int i = 0; i < 300; i++) {
        p[i] = arena_alloc(&a, (size_t)i * 7, 3);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 64, 0);
        memset(p[i], i & 255, (size_t)i * 21);
    }
    for (int i = 0; i < 300; i++)
        for (int k = 0; k < i * 21; k++)
            assert_int_equal(p[i][k], i & 255);
    arena_free(&a);
    assert_null(a.chunk);
    arena_free(&a);
}

static void large_blocks_and_overflow(void **state)
{
    (void)state;
    arena a = { 0 };
    unsigned char *big = arena_zero(&a, 5 << 20, 1);
    assert_non_null(big);
    assert_int_equal(big[0] | big[(5 << 20) - 1], 0);
    assert_null(arena_alloc(&a, SIZE_MAX, 2));
    assert_null(arena_alloc(&a, SIZE_MAX, 1));
    assert_null(arena_alloc(&a, SIZE_MAX - 100, 1));
    assert_null(arena_zero(&a, SIZE_MAX / 2, 1));
    assert_non_null(arena_alloc(&a, 1, 1)); // still usable
    arena_free(&a);
}

static void strings(void **state)
{
    (void)state;
    arena a = { 0 };
    char *s = arena_strndup(&a, "hello", 3), *t = arena_strndup(&a, "hi", 100);
    char *u = arena_printf(&a, "%s %d %s", s, 42, t);
    assert_string_equal(s, "hel");
    assert_string_equal(t, "hi");
    assert_string_equal(u, "hel 42 hi");
    char *w = arena_printf(&a, "%0*d", 100000, 7);
    assert_int_equal(strlen(w), 100000);
    assert_string_equal(arena_printf(&a, "%s", ""), "");
    arena_free(&a);
}

static void scopes_give_back(void **state)
{
    (void)state;
    arena a = { 0 };
    char *outer = arena_strndup(&a, "outer", 5);
    arena_position p = arena_mark(&a);
    void *x = arena_alloc(&a, 100, 1);
    arena_reset(&a, p);
    assert_ptr_equal(arena_alloc(&a, 100, 1), x);
    arena_reset(&a, p);
    for (int i = 0; i < 100; i++)
        assert_non_null(arena_alloc(&a, 10000, 1));
    arena_reset(&a, p);
    assert_string_equal(outer, "outer");
    assert_ptr_equal(arena_alloc(&a, 100, 1), x);
    arena_free(&a);
}

/* What a step does: the same allocations between mark and reset, again and again. */
static void loops_stop_allocating(void **state)
{
    (void)state;
    for (int empty = 0; empty < 2; empty++) {
        arena a = { 0 };
        if (!empty) arena_alloc(&a, 10, 1);
        arena_position p = arena_mark(&a);
        uint64_t count = 0;
        for (int round = 0; round < 5; round++) {
            if (round == 1) count = mem_count();
            for (size_t size = 10; size < 4000000; size *= 3)
                assert_non_null(arena_alloc(&a, size, 1));
            arena_reset(&a, p);
        }
        assert_int_equal(mem_count(), count);
        arena_free(&a);
    }
}

static void failing_leaves_it_usable(void **state)
{
    (void)state;
    arena a = { 0 };
    mem_fail_at(mem_count() + 1);
    assert_null(arena_alloc(&a, 1, 1));
    mem_fail_at(0);
    char *s = arena_strndup(&a, "kept", 4);
    mem_fail_at(mem_count() + 1);
    assert_null(arena_alloc(&a, 1 << 20, 1));
    mem_fail_at(0);
    assert_string_equal(s, "kept");
    assert_non_null(arena_alloc(&a, 1 << 20, 1));
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_aligned_and_apart),
        cmocka_unit_test(large_blocks_and_overflow),
        cmocka_unit_test(strings),
        cmocka_unit_test(scopes_give_back),
        cmocka_unit_test(loops_stop_allocating),
        cmocka_unit_test(failing_leaves_it_usable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
