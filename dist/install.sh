#!/bin/sh
# Installs Xylem from its tarball: PREFIX=/usr DESTDIR= ./install.sh, or removes it: ./install.sh --remove
#
# Where OpenRC is, or with OPENRC=yes, its scripts go to /etc/init.d.
#
# Nothing is started, enabled or stopped: for a running host see files/share/doc/xylem/store.md, "Switching a host over".
set -eu
prefix=${PREFIX:-/usr}
root=${DESTDIR:-}$prefix
here=$(cd "$(dirname "$0")" && pwd)

# files: those of the tarball, below the prefix. Units name programs by their path.
files() { (cd "$here/files" && find . -type f | cut -c 3- | sort); }

# scripts: those of OpenRC, if this host has it.
scripts() {
    [ "${OPENRC:-}" = yes ] || [ -x "${DESTDIR:-}/sbin/openrc-run" ] || [ -x "${DESTDIR:-}/usr/sbin/openrc-run" ] || return 0
    (cd "$here/openrc" && ls)
}

# with_prefix: programs by their path.
with_prefix() { sed "s,/usr/sbin/,$prefix/sbin/,;s,/usr/bin/,$prefix/bin/,;s,/usr/libexec/,$prefix/libexec/," "$1"; }

# running: which of the daemons run here. systemd soon ends a daemon whose unit is gone, and every guest needs the store.
running() {
    [ -z "${DESTDIR:-}" ] || return 0
    for daemon in xylemd xylem-web xylem-xenstored; do
        ! pidof "$daemon" >/dev/null || echo "$daemon"
    done
}

case ${1:-} in
    '')
        files | while read -r file; do
            mkdir -p "$root/$(dirname "$file")"
            case $file in
                lib/systemd/*) with_prefix "$here/files/$file" >"$root/$file" ;;
                *) cp "$here/files/$file" "$root/$file.new" && mv "$root/$file.new" "$root/$file" ;;
            esac
        done
        chmod 755 "$root/sbin/xylemd" "$root/sbin/xylem-xenstored" "$root/sbin/xylem-web" "$root/bin/xy" "$root/libexec/xylem/auto-start" \
            "$root/libexec/xylem-xenstored/reconnect-consoled"
        scripts | while read -r script; do
            mkdir -p "${DESTDIR:-}/etc/init.d"
            with_prefix "$here/openrc/$script" >"${DESTDIR:-}/etc/init.d/$script"
            chmod 755 "${DESTDIR:-}/etc/init.d/$script"
        done
        echo "installed below $root"
        ;;
    --remove)
        running=$(running | xargs)
        if [ -n "$running" ]; then
            echo "$0: still running: $running. Stop what can be stopped; how another store takes the place of xylem-xenstored" >&2
            echo "is in $here/files/share/doc/xylem/store.md, \"Switching a host over\"." >&2
            exit 1
        fi
        files | while read -r file; do rm -f "$root/$file"; done
        (cd "$here/openrc" && ls) | while read -r script; do rm -f "${DESTDIR:-}/etc/init.d/$script"; done
        echo "removed from $root; /var/lib/xylem is left"
        ;;
    *)
        echo "usage: [PREFIX=/usr] [DESTDIR=] $0 [--remove]" >&2
        exit 2
        ;;
esac
