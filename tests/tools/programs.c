/* Prints the listed programs of kernels/programs.txt, one per line. Usage: programs */
#include "support/programs.h"

#include <stdio.h>

static void print(const char *spec) {
    puts(spec);
}

int main(void) {
    programs_each(print);
    return 0;
}
