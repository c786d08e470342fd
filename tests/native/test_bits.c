/* Every kernel of every instruction set that this machine runs gives the same bits, in any number
 * of shares. Prints `op isa shape hash` a line; exit status 1 if any two instruction sets or share
 * counts differ, or if a kernel writes outside its output. Self-contained: run it natively or under
 * an emulator. */
#include "cases.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    const int quiet = argc > 1 && !strcmp(argv[1], "-q");
    static const int parts[] = {1, 2, 3, 7, 64};
    const int n_parts = argc > 2 ? 1 : 5; /* a second argument: in one share only, for emulators */
    int count, failures = 0;
    test_case *cases = make_cases(&count);
    uint64_t all = 1469598103934665603u;
    for (int i = 0; i < count; i++) {
        test_case *c = &cases[i];
        uint64_t expected = 0;
        for (int isa = 0; isa < kst_isa_count(); isa++) {
            if (!kst_isa_supported(isa)) continue;
            const char *variant = "";
            kst_kernel *kernel = kst_kernel_for(isa, c->cmd.op, c->dtype, &variant);
            if (!kernel) {
                printf("FAILED %s %s %s: no kernel\n", c->op, kst_isa_name(isa), c->shape);
                failures++;
                continue;
            }
            for (int p = 0; p < n_parts; p++) {
                const int broken = run_case(c, kernel, parts[p]);
                const uint64_t hash = hash_case(c);
                if (isa == 0 && p == 0) expected = hash;
                if (p == 0 && !quiet)
                    printf("%s %s %s %016llx\n", c->op, variant, c->shape,
                           (unsigned long long)hash);
                if (hash != expected || broken) {
                    printf("FAILED %s %s %s: in %d parts: %s\n", c->op, variant, c->shape, parts[p],
                           broken ? "wrote outside its output"
                                  : "other bits than scalar in one part");
                    failures++;
                }
            }
        }
        all = (all ^ expected) * 1099511628211u;
    }
    for (int isa = 0; isa < kst_isa_count(); isa++)
        printf("isa %s: %s\n", kst_isa_name(isa),
               kst_isa_supported(isa) ? "compared" : kst_isa_missing(isa));
    printf("%d cases, all %016llx, %d failures\n", count, (unsigned long long)all, failures);
    return failures ? 1 : 0;
}
