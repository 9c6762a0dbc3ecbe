// What this machine's processor can run, by uname and /proc/cpuinfo.

#ifndef MACHINE_H_
#define MACHINE_H_

#include <stdbool.h>

// Whether it is of the architecture that a triple begins with.
bool machine_is(const char* triple);

// Whether it has a feature of a target, as "+avx2". Only the instructions that kernels are made of are looked for.
bool machine_has(const char* feature);

#endif  // MACHINE_H_
