/* cpu_info.c: the processor's name, from /proc/cpuinfo, else the architecture's. */
#include "compute/cpu/cpu_info.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

void cpu_name(char *text, size_t size)
{
    text[0] = 0;
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (f && !text[0] && fgets(line, sizeof line, f)) {
        if (strncmp(line, "model name", 10)) continue;
        char *value = strchr(line, ':');
        if (!value) continue;
        value += 1 + strspn(value + 1, " \t");
        value[strcspn(value, "\r\n")] = 0;
        snprintf(text, size, "%s", value);
    }
    if (f) fclose(f);
    struct utsname u;
    if (!text[0]) snprintf(text, size, "%s", uname(&u) ? "unknown processor" : u.machine);
}
