/* places.c: names of tensors by the patterns of arch.h. */
#include "models/places.h"

#include <stdio.h>
#include <string.h>

static int digits(const char **s)
{
    int n = 0;
    if (**s < '0' || **s > '9') return -1;
    for (; **s >= '0' && **s <= '9'; (*s)++) {
        if (n > MAX_WIDTH) return -1;
        n = n * 10 + (**s - '0');
    }
    return n;
}

static bool matches(place *p, const char *pattern, const char *prefix, const char *name)
{
    size_t n = strlen(prefix);
    if (strncmp(name, prefix, n)) return false;
    name += n;
    *p = (place){ .layer = -1, .expert = -1, .suffix = ".weight" };
    for (; *pattern && *pattern != '!'; pattern++) {
        if (*pattern == '#' || *pattern == '@') {
            int x = digits(&name);
            if (x < 0) return false;
            *(*pattern == '#' ? &p->layer : &p->expert) = x;
        } else if (*name++ != *pattern) {
            return false;
        }
    }
    if (*pattern == '!') return !*name;
    p->suffix = name;
    return !strcmp(name, ".weight") || !strcmp(name, ".bias");
}

bool place_find_hf(place *p, const arch *a, const char *prefix, const char *outer, const char *name)
{
    for (int r = 0; r < ROLE_COUNT; r++) {
        const tensor_name *n = arch_tensor_name(a, (tensor_role)r);
        if (!n->hf) continue;
        bool outside = n->hf[0] == '/';
        if (!matches(p, n->hf + outside, outside ? outer : prefix, name)) continue;
        p->role = (tensor_role)r;
        return true;
    }
    return false;
}

bool place_find_gguf(place *p, const arch *a, const char *name)
{
    for (int r = 0; r < ROLE_COUNT; r++) {
        const tensor_name *n = arch_tensor_name(a, (tensor_role)r);
        if (!n->gguf || !matches(p, n->gguf, "", name)) continue;
        p->role = (tensor_role)r;
        return true;
    }
    return false;
}

bool place_key(char *out, size_t size, const arch *a, tensor_role role, int layer, int expert,
               const char *suffix)
{
    const char *s = arch_tensor_name(a, role)->hf;
    size_t at = 0;
    if (!s) return false;
    if (*s == '/') s++;
    for (; *s && *s != '!' && at + 24 < size; s++) {
        if (*s == '#' || *s == '@')
            at += (size_t)snprintf(out + at, size - at, "%d", *s == '#' ? layer : expert);
        else
            out[at++] = *s;
    }
    snprintf(out + at, size - at, "%s", *s == '!' && !strcmp(suffix, ".weight") ? "" : suffix);
    return true;
}

bool role_is_norm(tensor_role r)
{
    switch (r) {
    case ROLE_FINAL_NORM:
    case ROLE_ATTN_NORM:
    case ROLE_POST_ATTN_NORM:
    case ROLE_Q_NORM:
    case ROLE_K_NORM:
    case ROLE_FFN_NORM:
    case ROLE_POST_FFN_NORM: return true;
    default: return false;
    }
}
