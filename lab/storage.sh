# The storage suite, the same for every kind of SR: . /lab/storage.sh
#
# A scenario prepares its service and says how it can be looked into from outside:
#   put VDI       writes the guests' disk image into an unused VDI
#   text VDI      prints what a guest wrote there
#   fill_up       takes the SR's room away        free_up     gives it back
#   lose          takes the server away           find_again  brings it back
#   kill_driver VDI   kills what serves a VDI that is in use
#   enlarge VDI   makes a VDI 8 MiB large where the SR cannot
# `can NAME` returns 1 for what the kind has no use for, of: create, snapshot, snapshot_while_written, grow,
# grow_while_written, fill_up, lose, kill_driver; outlive_driver and outlive_server, if guests do not notice.
# By default all are there.
#
# An SR that cannot create VDIs has three: those that $storage_one, $storage_copy and $storage_read name.

storage_before=/results/storage.before
storage_one=s:one
storage_copy=s:copy
# Where the daemon is killed in each step: CALL:NUMBER, before one thread of it makes its call of that number.
#   rename    the record of a VDI's users: written before attach (1), before activate (2), with the device (3);
#             after deactivate (1)
#   unlink    that record goes, after detach; or a file of a VDI
#   record    the same for the record alone, by a thread that is there: a program that is run may remove files too
#   ftruncate, renameat2   a file that is made has no length yet, no name yet
#   program   it starts that program
#   question  it has put that question to a driver of the kind `program`, and waits for the answer. (With a VM under
#             way another thread waits likewise.)
kills_attach="rename:1 rename:2 rename:3"
kills_detach="rename:1 unlink:1"
kills_create="ftruncate:1 renameat2:1"
kills_snapshot="rename:1 renameat2:1"
kills_clone="renameat2:1"
kills_resize="ftruncate:1"
kills_destroy="unlink:1"
storage_killed=0

can() { case $1 in outlive_*) return 1 ;; esac }

section() { echo "== $* (at $(seconds_since "$storage_begun") s)"; }

# Nothing is attached that was not when the suite began.
same_attached() { same_state $storage_before; }

# file_system FOLDER: one of its own, so that it can be full.
file_system() {
    modprobe ext4
    truncate -s 48M /tmp/fs.img
    mkdir -p "$1"
    storage_loop=$(losetup -f)
    losetup "$storage_loop" /tmp/fs.img
    mke2fs "$storage_loop" >/dev/null
    mount -t ext4 "$storage_loop" "$1" || fail "no file system at $1"
}

# mounted_text FILE [OPTIONS]: what a guest wrote into the file system there.
mounted_text() {
    mkdir -p /tmp/look
    mount -t ext4 -o "ro${2:+,$2}" "$1" /tmp/look && cat /tmp/look/guest.txt
    umount /tmp/look
}

# vdi_unikernel NAME VDI MODE: a small guest with a VDI.
vdi_unikernel() {
    unikernel_cfg "$1" "type = 'pv'" "disk = ['$2,,xvda,$3']"
}

# killed_at POINT COMMAND...: runs it while the daemon is killed there, and starts a new daemon.
killed_at() {
    storage_point=$1
    shift
    number=${storage_point#*:}
    case ${storage_point%:*} in
        # Each has two files in memory for what it prints.
        program) calls=memfd_create number=$((2 * number - 1)) ;;
        question) calls=poll,ppoll ;;
        record) calls=unlink ;;
        *) calls=${storage_point%:*} ;;
    esac
    if [ "${storage_point%:*}" = record ]; then
        victims=$(printf -- '-p %s ' $(ls "/proc/$xylemd_pid/task"))
    else
        victims="-f -p $xylemd_pid"
    fi
    # shellcheck disable=SC2086 # options, a word each
    strace $victims -qq -o /dev/null -e trace=$calls \
        -e "inject=$calls:signal=KILL:when=$number" >/dev/null 2>&1 &
    tracer=$!
    wait_for "! grep -qs '^TracerPid:.*[^0-9]0\$' /proc/$xylemd_pid/task/*/status" 60
    "$@" >/tmp/storage.out 2>&1
    if xy info xen_version >/dev/null 2>&1; then
        check "$*: killed at $storage_point" false
        kill "$tracer"
        wait "$tracer" 2>/dev/null
    else
        storage_killed=$((storage_killed + 1))
        # It follows the daemon's children too, which may live.
        kill "$tracer" 2>/dev/null
        wait "$tracer" "$xylemd_pid" 2>/dev/null
        start_xylemd
    fi
}

# whole_or_gone VDI: it is listed, or nothing of it is left; either way it can be made once more.
whole_or_gone() {
    xy vdi-list s >/tmp/storage.list || return 1
    if grep -q "^$1 " /tmp/storage.list; then xy vdi-destroy "$1"; fi
}

# storage_suite KIND [KEY=VALUE...]: all of it, on an SR named s.
storage_suite() {
    kind=$1
    # Guests with the same name share a console log: each suite has names of its own.
    writer=writer-$kind
    storage_begun=$(now)
    section "an SR of kind $kind"
    check "sr-create" xy sr-create s "$@" || return 1
    check "another SR" xy sr-create other file path=/other
    check "a VDI in it" xy vdi-create other:one 1M
    check "sr-list has it" sh -c "xy sr-list | grep -q '^s  *$kind '"
    if can create; then check "its room can be told" sh -c "xy sr-info s | grep -q '^free_bytes  *: [1-9]'"; fi
    host_state >$storage_before

    storage_guest
    storage_copies
    storage_readers
    storage_kill
    if can kill_driver; then storage_driver; fi
    if can fill_up; then storage_full; fi
    if can lose; then storage_lost; fi

    section "all goes"
    xy vdi-list s
    if can create; then
        for vdi in $(xy vdi-list s | awk '/^s:/ { print $1 }'); do
            check "vdi-destroy $vdi" xy vdi-destroy "$vdi"
        done
        check "sr-destroy" xy sr-destroy s
    else
        check "an SR that has VDIs is not destroyed" refused_with 's: has ' xy sr-destroy s
        check "sr-forget" xy sr-forget s
    fi
    check "vdi-destroy other:one" xy vdi-destroy other:one
    check "sr-destroy other" xy sr-destroy other
    check "no SR is left" [ "$(xy sr-list | wc -l)" = 1 ]
    echo "suite $kind: $(seconds_since "$storage_begun") s, $storage_killed kills"
}

storage_guest() {
    section "a guest writes to a VDI"
    if can create; then check "vdi-create" xy vdi-create s:one 4M; fi
    put $storage_one
    linux_cfg "$writer" "type = 'pv'" "memory = 96" "extra = '$FAST_BOOT'" "disk = ['$storage_one,,xvda,w']"
    check "create $writer" xy create -q "/tmp/$writer.cfg"
    check "it reads and writes" console_wait "$writer" 'XYLEM-GUEST: disk=ok' 300
    check "it read what was put there" guest_says "$writer" 'disk_text=hello from the xylem lab disk'
    check "vdi-list shows who uses it" sh -c "xy vdi-list s | grep -q '^$storage_one .*xylem/.*/51712(w)'"
    vdi_unikernel second $storage_one r
    check "no other VM gets it" refused_with "second.cfg:.*$storage_one: is in use by xylem/" \
        xy create -q /tmp/second.cfg
    check "the SR cannot be forgotten" refused_with 's: ' xy sr-forget s
    if can create; then
        check "it cannot be destroyed" refused_with 's:one: is in use by' xy vdi-destroy s:one
        if can snapshot_while_written; then
            check "a snapshot while it is written" xy vdi-snapshot s:one live
            check "vdi-destroy live" xy vdi-destroy s:live
        else
            if can snapshot; then why=stop; else why='no snapshots'; fi
            check "no snapshot while it is written, and why" refused_with "s:one: .*$why" \
                xy vdi-snapshot s:one live
        fi
    else
        for request in "vdi-create s:new 4M" "vdi-snapshot $storage_one new" "vdi-clone $storage_one new"; do
            check "no $request, and why" refused_with 's:.*on their server' xy $request
        done
        check "no vdi-resize, and why" refused_with "$storage_one: .*on its server" xy vdi-resize $storage_one 8M
    fi
    if can grow_while_written; then
        check "it grows while it is used" xy vdi-resize $storage_one 8M
    elif can grow; then
        check "it does not grow while it is used, and why" refused_with "$storage_one: .*stop" \
            xy vdi-resize $storage_one 8M
    fi
    check "shutdown $writer" xy shutdown -w "$writer"
    check "dom0 is as before" wait_for "same_attached" 60
    if ! can grow_while_written; then
        can grow || enlarge $storage_one
        check "it grows" xy vdi-resize $storage_one 8M
    fi
    check "it has grown" sh -c "xy vdi-list s | grep -q '^$storage_one  *8 '"
    check "never smaller" refused_with 'cut off' xy vdi-resize $storage_one 4M
}

storage_copies() {
    readers=${storage_read:-$storage_copy}
    can create || return 0
    section "snapshots and clones"
    if can snapshot; then
        check "vdi-snapshot" xy vdi-snapshot s:one snap
        check "vdi-clone" xy vdi-clone s:snap copy
        vdi_unikernel spoiler s:snap w
        check "a snapshot is not written to" refused_with 's:snap: is a snapshot' xy create -q /tmp/spoiler.cfg
        readers=s:snap
    else
        check "vdi-clone" xy vdi-clone s:one copy
    fi
    check "the clone has what the guest wrote" [ "$(text s:copy)" = "written by a guest" ]
}

storage_readers() {
    section "many readers"
    names="reader1-$kind reader2-$kind reader3-$kind"
    for name in $names; do
        vdi_unikernel "$name" $readers r
        check "create $name" xy create -q "/tmp/$name.cfg"
    done
    for name in $names; do
        check "$name has its disk" console_wait "$name" 'vbd 51712' 200
        check "destroy $name" xy destroy "$name"
    done
    check "dom0 is as before" wait_for "same_attached" 60
}

# killed_in STEP POINTS COMMAND...: killed at each point, and what was being made of `s:made` is whole or gone.
killed_in() {
    storage_step=$1 points=$2
    shift 2
    for point in $points; do
        killed_at "$point" "$@"
        check "$storage_step, killed at $point: whole or gone" whole_or_gone s:made
    done
}

storage_kill() {
    section "the daemon is killed in each step"
    vdi_unikernel half $storage_copy w
    for point in $kills_attach; do
        killed_at "$point" xy create -q /tmp/half.cfg
        xy destroy half >/dev/null 2>&1
        check "attach and activate, killed at $point: nothing is attached" wait_for "same_attached" 60
    done
    for point in $kills_detach; do
        check "create half" xy create -q /tmp/half.cfg
        killed_at "$point" xy destroy half
        xy destroy half >/dev/null 2>&1
        check "deactivate and detach, killed at $point: nothing is attached" wait_for "same_attached" 60
    done
    can create || return 0
    killed_in vdi-create "$kills_create" xy vdi-create s:made 4M
    if can snapshot; then killed_in vdi-snapshot "$kills_snapshot" xy vdi-snapshot s:one made; fi
    killed_in vdi-clone "$kills_clone" xy vdi-clone s:one made
    for point in $kills_resize; do
        check "vdi-create made" xy vdi-create s:made 4M
        killed_at "$point" xy vdi-resize s:made 8M
        check "vdi-resize, killed at $point: it grows" xy vdi-resize s:made 8M
        check "vdi-destroy made" xy vdi-destroy s:made
    done
    for point in $kills_destroy; do
        check "vdi-create made" xy vdi-create s:made 4M
        killed_at "$point" xy vdi-destroy s:made
        check "vdi-destroy, killed at $point: whole or gone" whole_or_gone s:made
    done
    check "nothing is attached" wait_for "same_attached" 60
}

# busy_guest NAME VDI: a Linux guest that writes and reads all the time.
busy_guest() {
    linux_cfg "$1" "type = 'pv'" "memory = 96" "extra = '$FAST_BOOT xylem.io=1'" "disk = ['$2,,xvda,w']"
    check "create $1" xy create -q "/tmp/$1.cfg"
    check "it writes and reads" console_wait "$1" 'XYLEM-GUEST: io=[1-9]' 300
}

# goes_on NAME: it still writes and reads.
goes_on() {
    io_lines() { grep -c 'XYLEM-GUEST: io=[1-9]' "$(console_log "$1")"; }
    lines=$(io_lines "$1")
    wait_for "[ \$(io_lines $1) -gt $((lines + 2)) ]" 60 && ! guest_says "$1" io=failed
}

storage_driver() {
    section "what serves a VDI is killed"
    victim=victim-$kind
    busy_guest "$victim" $storage_copy
    check "killed" kill_driver $storage_copy
    if can outlive_driver; then
        check "its guest does not notice" goes_on "$victim"
    else
        check "its guest gets errors" console_wait "$victim" 'XYLEM-GUEST: io=failed' 120
        check "vdi-list says what is wrong" refused_with "$storage_copy: .*has ended" xy vdi-list s
    fi
    check "destroy $victim" xy destroy "$victim"
    check "nothing is attached" wait_for "same_attached" 60
    check "the VDI can be used again" xy create -q /tmp/half.cfg
    check "destroy half" xy destroy half
    check "nothing is attached" wait_for "same_attached" 60
}

storage_full() {
    section "no room"
    fill_up
    xy vdi-create s:large 64M >/dev/null 2>/tmp/storage.err || cat /tmp/storage.err
    check "a copy that has no room is refused" refused_with 's.*\(space\|room\|extents\)' xy vdi-clone s:one full
    check "and not there" sh -c '! xy vdi-list s | grep -q s:full'
    free_up
    xy vdi-destroy s:large >/dev/null 2>&1
    check "with room, it is made" xy vdi-clone s:one full
    check "vdi-destroy full" xy vdi-destroy s:full
}

# within SECONDS START: no more have passed.
within() { [ "$(seconds_since "$2" | cut -d . -f 1)" -lt "$1" ]; }

storage_lost() {
    section "a lost server"
    unikernel_cfg elsewhere "type = 'pv'" "disk = ['other:one,,xvda,w']"
    busy_guest "held-$kind" $storage_one
    lose
    lost=$(now)
    xy create -q /tmp/half.cfg >/tmp/lost.out 2>/tmp/lost.err &
    creator=$!
    begun=$(now)
    check "a VM of another SR starts meanwhile" xy create -q /tmp/elsewhere.cfg
    check "and goes" xy destroy elsewhere
    echo "after $(seconds_since "$begun") s"
    check "without waiting for the lost one" within 30 "$begun"
    check "sr-list does not wait" xy sr-list
    # What has its device already may be given another user of it without the server.
    if wait $creator; then echo "half was created"; else cat /tmp/lost.err; fi
    echo "the create ended after $(seconds_since "$lost") s"
    check "in bounded time" within 180 "$lost"
    check "its error is one line" sh -c 'grep -c . /tmp/lost.err | grep -q "^[01]\$"'
    begun=$(now)
    xy vdi-list s >/tmp/lost.out 2>/tmp/lost.err
    cat /tmp/lost.err
    echo "vdi-list ended after $(seconds_since "$begun") s"
    check "vdi-list says so in one line" sh -c 'grep -c "s.*: " /tmp/lost.err | grep -q "^1\$"'
    check "in bounded time" within 180 "$begun"
    if can outlive_server; then
        check "its guest does not notice" goes_on "held-$kind"
    else
        check "its guest gets errors" console_wait "held-$kind" 'XYLEM-GUEST: io=failed' 180
        echo "after $(seconds_since "$lost") s"
    fi
    begun=$(now)
    xy destroy "held-$kind" || echo "it cannot go yet"
    echo "the VM on the lost server: $(seconds_since "$begun") s"
    check "in bounded time" within 180 "$begun"
    find_again
    check "and completes it" wait_for "xy vdi-list s" 200
    xy destroy half >/dev/null 2>&1
    xy destroy "held-$kind" >/dev/null 2>&1
    # What could not be released is released by the next request.
    check "nothing is attached" wait_for "xy vdi-list s && same_attached" 120
    check "a VM starts again" xy create -q /tmp/half.cfg
    check "destroy half" xy destroy half
}
