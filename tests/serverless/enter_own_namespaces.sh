#!/bin/sh
# enter_own_namespaces.sh [folder ...] -- program [argument ...]
#
# Run by `unshare --mount --pid --ipc --fork`: builds a root of its own in memory that holds the given folders, read-only,
# and nothing else of the host; /tmp, /dev/shm and /proc are new. The network is the host's, as sockets are all that a
# function has in common with its caller.
set -eu
mount --make-rprivate /
mount -t tmpfs -o size=64m tmpfs "$PWD"
root=$PWD
cd "$root" # the new root, not what lies below it
mkdir -p proc tmp dev/shm host
mount -t tmpfs -o size=64m tmpfs tmp # before what lies below it, where Python is in /tmp
mount -t tmpfs -o size=64m tmpfs dev/shm
while [ "$1" != -- ]; do
    if [ -L "$1" ]; then # /lib → usr/lib
        mkdir -p ".$(dirname "$1")"
        ln -s "$(readlink "$1")" ".$1"
    elif [ -d "$1" ]; then
        mkdir -p ".$1"
        mount --bind "$1" ".$1"
        mount -o remount,bind,ro ".$1"
    else
        mkdir -p ".$(dirname "$1")"
        touch ".$1"
        mount --bind "$1" ".$1"
    fi
    shift
done
shift
mount -t proc proc proc
for device in null zero urandom; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
pivot_root . host
cd /tmp
umount -l /host
rmdir /host
exec "$@"
