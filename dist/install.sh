#!/bin/sh
# Installs Xylem from its tarball: PREFIX=/usr DESTDIR= ./install.sh, or removes it: ./install.sh --remove
#
# Nothing is started, enabled or stopped: for a running host see files/share/doc/xylem/store.md, "Switching a host over".
set -eu
prefix=${PREFIX:-/usr}
root=${DESTDIR:-}$prefix
here=$(cd "$(dirname "$0")" && pwd)

# files: those of the tarball, below the prefix. Units name programs by their path.
files() { (cd "$here/files" && find . -type f | cut -c 3- | sort); }

case ${1:-} in
    '')
        files | while read -r file; do
            mkdir -p "$root/$(dirname "$file")"
            case $file in
                lib/systemd/*) sed "s,/usr/sbin/,$prefix/sbin/,;s,/usr/bin/,$prefix/bin/," "$here/files/$file" >"$root/$file" ;;
                *) cp "$here/files/$file" "$root/$file.new" && mv "$root/$file.new" "$root/$file" ;;
            esac
        done
        chmod 755 "$root/sbin/xylemd" "$root/sbin/xylem-xenstored" "$root/bin/xy"
        echo "installed below $root"
        ;;
    --remove)
        files | while read -r file; do rm -f "$root/$file"; done
        echo "removed from $root; /var/lib/xylem is left"
        ;;
    *)
        echo "usage: [PREFIX=/usr] [DESTDIR=] $0 [--remove]" >&2
        exit 2
        ;;
esac
