/* The version of these headers, and of the library that a program runs with. */
#ifndef MOERT_VERSION_H
#define MOERT_VERSION_H

#include "moert/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MOERT_VERSION_MAJOR 0
#define MOERT_VERSION_MINOR 1
#define MOERT_VERSION_PATCH 0
#define MOERT_VERSION_NUMBER                                                                       \
    (MOERT_VERSION_MAJOR * 10000 + MOERT_VERSION_MINOR * 100 + MOERT_VERSION_PATCH)

/* The MOERT_VERSION_NUMBER of the library that the program runs with. */
MOERT_API unsigned moert_version(void);

#ifdef __cplusplus
}
#endif
#endif
