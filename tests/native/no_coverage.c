/* no_coverage: what compiled-in calls for coverage do in programs that do not count it: nothing. */
void __sanitizer_cov_trace_pc(void);

__attribute__((weak)) void __sanitizer_cov_trace_pc(void) {}
