/* kernels/programs.txt: the programs that the library may build. In test programs, building a
 * program that the table does not list fails, unless MOERT_KERNEL_DIR replaces the kernels. */
#pragma once

#include <stdbool.h>

/* Whether some line of the table lists the program "FAMILY -DNAME=VALUE...". */
bool programs_take(const char *spec);
/* Whether the table has the family of the program. */
bool programs_have_family(const char *spec);
/* Calls `use` for each listed program, in the order of the lines. */
void programs_each(void (*use)(const char *spec));
