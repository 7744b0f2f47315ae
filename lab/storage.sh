# The storage suite, the same for every kind of SR: . /lab/storage.sh
#
# A scenario prepares its service and says how it can be looked into from outside:
#   put VDI       writes the guests' disk image into a VDI that nobody uses
#   text VDI      prints what a guest wrote there
#   fill_up       takes the SR's room away        free_up     gives it back
#   lose          takes the server away           find_again  brings it back
# A function that the kind has no use for returns 1 from `can NAME`; by default all are there.

storage_before=/results/storage.before

# refused_with PATTERN COMMAND...: it fails with one line that matches.
refused_with() {
    storage_pattern=$1
    shift
    "$@" >/tmp/storage.out 2>/tmp/storage.err && return 1
    cat /tmp/storage.err
    [ "$(wc -l </tmp/storage.err)" = 1 ] && grep -q -- "$storage_pattern" /tmp/storage.err
}

can() { true; }

# vdi_unikernel NAME VDI MODE: a small guest with a VDI.
vdi_unikernel() {
    unikernel_cfg "$1" "type = 'pv'" "disk = ['$2,,xvda,$3']"
}

# storage_suite KIND [KEY=VALUE...]: all of it, on an SR named s.
storage_suite() {
    kind=$1
    # A console's log goes on from one guest of a name to the next: each suite has names of its own.
    writer=writer-$kind
    echo "== an SR of kind $kind"
    check "sr-create" xy sr-create s "$@" || return 1
    check "sr-list has it" sh -c "xy sr-list | grep -q '^s  *$kind '"
    check "its room can be told" sh -c "xy sr-info s | grep -q '^free_bytes  *: [1-9]'"
    host_state >$storage_before

    echo "== a guest writes to a VDI"
    check "vdi-create" xy vdi-create s:one 4M
    put s:one
    linux_cfg "$writer" "type = 'pv'" "memory = 96" "extra = '$FAST_BOOT'" "disk = ['s:one,,xvda,w']"
    check "create $writer" xy create -q "/tmp/$writer.cfg"
    check "it reads and writes" console_wait "$writer" 'XYLEM-GUEST: disk=ok' 300
    check "it read what was put there" guest_says "$writer" 'disk_text=hello from the xylem lab disk'
    check "vdi-list shows who uses it" sh -c "xy vdi-list s | grep -q '^s:one .*xylem/.*/51712(w)'"
    vdi_unikernel second s:one r
    check "nobody else has it" refused_with 'second.cfg:.*s:one: is in use by xylem/' xy create -q /tmp/second.cfg
    check "it cannot be destroyed" refused_with 's:one: is in use by' xy vdi-destroy s:one
    check "the SR cannot be forgotten" refused_with 's: ' xy sr-forget s
    if can snapshot_while_written; then
        check "a snapshot while it is written" xy vdi-snapshot s:one live
        check "vdi-destroy live" xy vdi-destroy s:live
    else
        if can snapshot; then why=stop; else why='no snapshots'; fi
        check "no snapshot while it is written, and why" refused_with "s:one: .*$why" xy vdi-snapshot s:one live
    fi
    if can grow_while_written; then
        check "it grows while it is used" xy vdi-resize s:one 8M
    fi
    check "shutdown $writer" xy shutdown -w "$writer"
    check "dom0 is as before" wait_for "same_attached" 60
    can grow_while_written || check "it grows" xy vdi-resize s:one 8M
    check "it has grown" sh -c "xy vdi-list s | grep -q '^s:one  *8 '"
    check "never smaller" refused_with 'cut off' xy vdi-resize s:one 4M

    if can snapshot; then
        echo "== snapshots and clones"
        check "vdi-snapshot" xy vdi-snapshot s:one snap
        check "vdi-clone" xy vdi-clone s:snap copy
        check "the clone has what the guest wrote" [ "$(text s:copy)" = "written by a guest" ]
        vdi_unikernel spoiler s:snap w
        check "a snapshot is not written to" refused_with 's:snap: is a snapshot' xy create -q /tmp/spoiler.cfg
        readers=s:snap
    else
        check "vdi-clone" xy vdi-clone s:one copy
        check "the clone has what the guest wrote" [ "$(text s:copy)" = "written by a guest" ]
        readers=s:copy
    fi

    echo "== many readers"
    for name in reader1-$kind reader2-$kind reader3-$kind; do
        vdi_unikernel $name $readers r
        check "create $name" xy create -q /tmp/$name.cfg
    done
    for name in reader1-$kind reader2-$kind reader3-$kind; do
        check "$name has its disk" console_wait $name 'vbd 51712' 200
        check "destroy $name" xy destroy $name
    done
    check "dom0 is as before" wait_for "same_attached" 60

    echo "== the daemon is killed while it attaches and detaches"
    vdi_unikernel half s:copy w
    for delay in 0.03 0.08 0.15 0.3 0.6 end; do
        xy create -q /tmp/half.cfg >/dev/null 2>&1 &
        creator=$!
        if [ $delay = end ]; then
            wait $creator
            xy destroy half >/dev/null 2>&1 &
            creator=$!
            sleep 0.1
        else
            sleep $delay
        fi
        kill_xylemd
        wait $creator
        start_xylemd
        xy destroy half >/dev/null 2>&1
        check "killed at $delay: nothing is attached" wait_for "same_attached" 60
    done

    if can fill_up; then
        echo "== no room"
        fill_up
        xy vdi-create s:large 64M >/dev/null 2>/tmp/storage.err || cat /tmp/storage.err
        check "a copy that has no room is refused" refused_with 's.*\(space\|room\|extents\)' xy vdi-clone s:one full
        check "and not there" sh -c '! xy vdi-list s | grep -q s:full'
        free_up
        xy vdi-destroy s:large >/dev/null 2>&1
        check "with room, it is made" xy vdi-clone s:one full
        check "vdi-destroy full" xy vdi-destroy s:full
    fi

    if can lose; then
        echo "== a lost server"
        lose
        started=$(now)
        check "vdi-list says so" refused_with '^[^:]*s.*: ' xy vdi-list s
        echo "after $(seconds_since "$started") s"
        check "within two minutes" [ "$(seconds_since "$started" | cut -d . -f 1)" -lt 120 ]
        check "sr-list waits for nobody" xy sr-list
        check "other VMs neither" xy info xen_version
        find_again
        check "and goes on with it" wait_for "xy vdi-list s" 200
    fi

    echo "== all goes"
    xy vdi-list s
    for vdi in $(xy vdi-list s | awk '/^s:/ { print $1 }'); do
        check "vdi-destroy $vdi" xy vdi-destroy "$vdi"
    done
    check "sr-destroy" xy sr-destroy s
    check "no SR is left" [ "$(xy sr-list | wc -l)" = 1 ]
}

# Nothing is attached that was not when the suite began.
same_attached() { same_state $storage_before; }
