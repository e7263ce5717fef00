/* Work-item functions for clang's NVPTX target, which has no OpenCL library of its own. */
#define get_local_id(i)   ((uint)__nvvm_read_ptx_sreg_tid_x())
#define get_group_id(i)   ((uint)__nvvm_read_ptx_sreg_ctaid_x())
#define get_num_groups(i) ((uint)__nvvm_read_ptx_sreg_nctaid_x())
#define barrier(fence)    __nvvm_bar_sync(0)
#define min(a, b)         ((a) < (b) ? (a) : (b))
#define max(a, b)         ((a) > (b) ? (a) : (b))
#define fma(a, b, c)      __builtin_fmaf(a, b, c)
