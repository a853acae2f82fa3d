/* backend.c: the backends of this build, best first. */
#include "compute/backend.h"

#include <string.h>

extern const backend backend_cpu;

const backend *const backends[] = {&backend_cpu, NULL};

const backend *backend_find(const char *name)
{
    for (int i = 0; backends[i]; i++)
        if (!strcmp(backends[i]->name, name)) return backends[i];
    return NULL;
}

const backend *default_backend(void)
{
    for (int i = 0; backends[i]; i++)
        if (backends[i]->available()) return backends[i];
    return NULL;
}
