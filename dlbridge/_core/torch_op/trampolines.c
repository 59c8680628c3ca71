/* The pool of boxed functions: each passes its number on and knows nothing else.
 *
 * Thousands of C functions take a compiler ten seconds and half a megabyte. So where
 * the machine's code is known, one is two instructions, 16 bytes apart: the fourth
 * argument, and a jump, which leaves no frame that an exception would have to cross.
 * Other machines have a small pool in C. */
#include "torch_op/op.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))

#ifdef __x86_64__
#define FUNCTION "endbr64\n movl $number, %ecx\n jmp dlb_torch_run\n"
#else
#define FUNCTION "hint 34\n mov w3, #number\n b dlb_torch_run\n"
#endif

__asm__(".pushsection .text\n"
        ".balign 16\n"
        ".type dlb_torch_pool, %function\n"
        "dlb_torch_pool:\n"
        ".set number, 0\n"
        ".rept " TEXT(DLB_TORCH_OPS) "\n" FUNCTION ".balign 16\n"
                                     ".set number, number + 1\n"
                                     ".endr\n"
                                     ".size dlb_torch_pool, . - dlb_torch_pool\n"
                                     ".popsection\n");

void dlb_torch_pool(dlb_torch_value *stack, uint64_t inputs, uint64_t outputs);

const int dlb_torch_pool_size = DLB_TORCH_OPS;

dlb_torch_boxed dlb_torch_trampoline(int number) {
    return (dlb_torch_boxed)((uintptr_t)dlb_torch_pool + 16 * (uintptr_t)number);
}

#else

/* Two hexadecimal digits are put together to a number. */
/* clang-format off */
#define ROW(h) \
    FUNCTION(h##0) FUNCTION(h##1) FUNCTION(h##2) FUNCTION(h##3) \
    FUNCTION(h##4) FUNCTION(h##5) FUNCTION(h##6) FUNCTION(h##7) \
    FUNCTION(h##8) FUNCTION(h##9) FUNCTION(h##a) FUNCTION(h##b) \
    FUNCTION(h##c) FUNCTION(h##d) FUNCTION(h##e) FUNCTION(h##f)
#define ALL \
    ROW(0) ROW(1) ROW(2) ROW(3) ROW(4) ROW(5) ROW(6) ROW(7) \
    ROW(8) ROW(9) ROW(a) ROW(b) ROW(c) ROW(d) ROW(e) ROW(f)

#define FUNCTION(h) \
    static void operator_##h(dlb_torch_value *stack, uint64_t inputs, \
                             uint64_t outputs) { \
        dlb_torch_run(stack, inputs, outputs, 0x##h); \
    }
ALL
#undef FUNCTION
#define FUNCTION(h) operator_##h,
    /* clang-format on */

    static const dlb_torch_boxed pool[] = {ALL};
const int dlb_torch_pool_size = sizeof pool / sizeof *pool;

dlb_torch_boxed dlb_torch_trampoline(int number) {
    return pool[number];
}

#endif
