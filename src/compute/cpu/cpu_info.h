/* cpu_info.h: what the processor calls itself. */
#ifndef COMPUTE_CPU_CPU_INFO_H
#define COMPUTE_CPU_CPU_INFO_H

#include <stddef.h>

/* "AMD EPYC", "Cortex-A76 (aarch64)", …; never empty. */
void cpu_name(char *text, size_t size);

#endif
