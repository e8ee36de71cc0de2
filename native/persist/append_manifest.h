/* append_manifest: which files make up the append-only file: a base, which is a snapshot, and the increments that
 * follow it. The manifest is written under another name and then renamed, so it is always complete. It has one line
 * for each file: "file NAME seq N type b|i". */
#ifndef REPLAY_PERSIST_APPEND_MANIFEST_H
#define REPLAY_PERSIST_APPEND_MANIFEST_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define APPEND_MOST_INCREMENTS 1000u /* after so many rewrites that failed one after the other none is begun any more */
#define APPEND_BASE_SUFFIX ".base.snapshot"
#define APPEND_INCREMENT_SUFFIX ".incr.aof"
#define APPEND_MANIFEST_SUFFIX ".manifest"

struct append_manifest {
    char stem[NAME_MAX + 1]; /* files are called STEM.N.base.snapshot, STEM.N.incr.aof, STEM.manifest */
    uint64_t base; /* its number; 0: there is none yet, what comes first is an empty store */
    uint64_t first, count; /* numbers of the increments: first … first + count - 1; count 0: no file is there */
};

void append_base_name(const struct append_manifest *manifest, uint64_t number, char name[NAME_MAX + 1]);
void append_increment_name(const struct append_manifest *manifest, uint64_t number, char name[NAME_MAX + 1]);
/* 1: read; 0: there is none, and `manifest` is that of an empty store; -1: it is there but of no use. `folder` is a
 * descriptor. */
int append_manifest_read(int folder, const char *stem, struct append_manifest *manifest, struct error *error);
/* Returns once it is on the disk. Where it fails and `renamed` is set it has taken the old one's place, but nobody knows
 * which of them the disk has: files of both must stay. */
int append_manifest_write(int folder, const struct append_manifest *manifest, bool *renamed, struct error *error);
/* Removes files of our names that the manifest does not name: what a server that was killed left unfinished. */
void append_manifest_tidy(int folder, const struct append_manifest *manifest);

#endif
