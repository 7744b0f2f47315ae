# The hands of the soak that work on VDIs, with xl, list, and kill: . /lab/soak-others.bash

prepare_others() {
    # Without devices: xl's scripts for them are stopped after 40 s, which is little on an emulated host that is busy.
    unikernel_cfg resident "type = 'pv'" "extra = 'xylem.quiet'"
    unikernel_cfg foreign "type = 'pv'" "extra = 'xylem.quiet'"
    # Without a process that waits for its end: xl's do not outlive a restart of the store.
    xl create -e -q /tmp/resident.cfg || fail "xl create"
    resident=$(xl domid resident)
    : >/results/ops.main
    # Nobody does anything to this one but to try and take its disk away.
    xy vdi-create s:keeper-xvda 1M || fail vdi-create
    unikernel_cfg keeper "type = 'pv'" "extra = 'xylem.quiet'" "disk = ['s:keeper-xvda,,xvda,w']"
    xy create -q /tmp/keeper.cfg || fail "create keeper"
    keeper=$(xy domid keeper)
}

keeper_is_whole() {
    [ "$(xy domid keeper)" = "$keeper" ] && xy vdi-list s | grep -q '^s:keeper-xvda ' &&
        [ "$(rows block-list keeper | awk '{ print $1, $4 }')" = "51712 4" ]
}

foreign_is_untouched() {
    [ "$(xl domid resident)" = "$resident" ] && xl list resident | awk 'NR == 2 && $5 ~ /^..----$/ { good = 1 } END { exit !good }'
}

# xl and a kill of the store keep away from each other: xl does not survive that.
xl_once() {
    (
        flock 8
        operate xl-create ok xl create -e -q /tmp/foreign.cfg 8>&-
        operate foreign-destroy refused xy destroy foreign 8>&-
        operate xl-destroy ok xl destroy foreign 8>&-
    ) 8>/tmp/xl.lock
}

xl_hand() {
    xl_once
    draw 8
    sleep $((drawn + 2))
}

list_hand() {
    pick list vm-list info trace "vdi-list s" sr-list events counters "top -b -i 1" "block-list u1" store-ls xl-list
    case $picked in
        # What is gone has no disks.
        block-list*) xy $picked >/dev/null 2>&1; return ;;
        store-ls) operate store-ls ok xy store ls / ;;
        xl-list) ( flock 8; operate xl-list ok xl list 8>&- ) 8>/tmp/xl.lock ;;
        # shellcheck disable=SC2086 # one word for each
        *) operate "list-${picked%% *}" ok xy $picked ;;
    esac
    # A daemon that starts is not asked all the time.
    [ "$fate" = ok ] || sleep 0.5
}

# The VDIs t1 to t4 of s, and an SR beside. The model is the list itself, after each change.
vdis() { xy vdi-list s 2>/dev/null | awk -F '[ :]' '$1 == "s" { print $2 }' | grep '^t'; }
has_vdi() { case " $known " in *" $1 "*) true ;; *) false ;; esac; }

vdi_hand() {
    local vdi other size
    [ "$fate" != cut ] || wait_for 'xy vdi-list s' 60
    known=$(vdis | tr '\n' ' ')
    pick t1 t2 t3 t4
    vdi=$picked
    pick t1 t2 t3 t4
    other=$picked
    draw 10
    case $drawn in
        [0-2]) if has_vdi $vdi; then operate vdi-twice refused xy vdi-create s:$vdi 1M; else operate vdi-create ok xy vdi-create s:$vdi 1M; fi ;;
        3 | 4) if has_vdi $vdi; then operate vdi-destroy ok xy vdi-destroy s:$vdi; else operate vdi-not-there refused xy vdi-destroy s:$vdi; fi ;;
        5) if has_vdi $vdi && ! has_vdi $other; then operate vdi-clone ok xy vdi-clone s:$vdi $other; fi ;;
        6) if has_vdi $vdi; then operate vdi-shrink refused xy vdi-resize s:$vdi 4K; fi ;;
        7)
            if has_vdi $vdi && ! has_vdi $other; then
                operate vdi-snapshot ok xy vdi-snapshot s:$vdi $other
                operate vdi-resize-snapshot refused xy vdi-resize s:$other 2M
            fi
            ;;
        8) beside ;;
        9) operate vdi-in-use refused xy vdi-destroy s:keeper-xvda ;;
    esac
    sleep 0.2
}

# beside: another SR, from its beginning to its end.
beside() {
    wait_for 'xy sr-list' 60
    if xy sr-list | grep -q '^other '; then xy sr-forget other; rm -rf /srv/other; fi
    operate sr-create ok xy sr-create other file path=/srv/other
    operate vdi-create ok xy vdi-create other:one 1M
    [ "$fate" = ok ] || return
    operate sr-destroy-full refused xy sr-destroy other
    operate sr-forget ok xy sr-forget other
    [ "$fate" = ok ] || return
    operate sr-introduce ok xy sr-introduce other file path=/srv/other
    operate vdi-destroy ok xy vdi-destroy other:one
    [ "$fate" = ok ] || return
    operate sr-destroy ok xy sr-destroy other
}

clear_vdis() {
    local vdi
    for vdi in $(vdis); do operate vdi-destroy ok xy vdi-destroy "s:$vdi"; done
    if xy sr-list | grep -q '^other '; then xy sr-forget other; fi
    rm -rf /srv/other
}

# kill_hand: xylemd twice as often as the store.
kill_hand() {
    draw 25
    sleep $((drawn + 8)).$drawn
    [ $SECONDS -lt "$until" ] || return
    draw 3
    if [ $drawn = 0 ]; then kill_store; else kill_daemon; fi
}

# count_kill NAME: one step of its count.
count_kill() {
    local number
    read -r number <"$folder/kills-$1"
    echo $((number + 1)) >"$folder/.kills-$1"
    mv "$folder/.kills-$1" "$folder/kills-$1"
}

kill_daemon() {
    local pid begun
    pid=$(<$folder/xylemd.pid)
    [ -d "/proc/$pid" ] || wrong xylemd-died "$(tail -n 5 /results/xylemd.log)"
    count_kill xylemd
    clock
    begun=$now_us
    kill -9 "$pid"
    wait_for "[ ! -d /proc/$pid ] || grep -q '^State:.*Z' /proc/$pid/status" 20
    launch_xylemd
    clock
    count_kill xylemd
    echo "restart-xylemd ok $(((now_us - begun) / 1000))" >>"/results/ops.$worker"
}

kill_store() {
    local begun
    (
        flock 8
        count_kill store
        clock
        begun=$now_us
        kill -9 "$(store_pid)"
        xylem-xenstored >>/var/log/xen/xylem-xenstored.log 2>&1 </dev/null 8>&- || fail "the store does not start: $(tail -n 3 /var/log/xen/xylem-xenstored.log)"
        clock
        echo "restart-store ok $(((now_us - begun) / 1000))" >>"/results/ops.$worker"
        # It uses libxenstore, which does not connect again.
        kill "$(pidof xenconsoled)" 2>/dev/null
        wait_for '! pidof xenconsoled' 5
        xenconsoled --log=all --log-dir=/var/log/xen/console --pid-file=/run/xenconsoled.pid 8>&-
        count_kill store
    ) 8>/tmp/xl.lock
}
