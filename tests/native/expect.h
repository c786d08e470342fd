/* Counts what does not hold, and goes on. */
#ifndef KESTREL_TEST_EXPECT_H
#define KESTREL_TEST_EXPECT_H

#include <stdio.h>

static int failures;
#define EXPECT(condition) \
    do { \
        if (!(condition)) { \
            printf("FAILED line %d: %s\n", __LINE__, #condition); \
            failures++; \
        } \
    } while (0)

#endif
