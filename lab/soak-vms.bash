# The hands of the soak that work on VMs, and their model: . /lab/soak-vms.bash
#
# A VM's model is a line in a file: life (none, down, up), defined (0, 1), number of interfaces, CD, disks.

# draw N: a number below N, in $drawn.
draw() { drawn=$((RANDOM % $1)); }
# pick WORDS...: one of them, in $picked.
pick() {
    draw $#
    shift $drawn
    picked=$1
}
count() { echo $#; }
recall() { read -r life defined vifs cd disks <"$folder/$1.vm"; [ "$cd" != - ] || cd=''; }
remember() { echo "$life $defined $vifs ${cd:--} $disks" >"$folder/$1.vm"; }

# wrong KIND TEXT: what must not be; the evidence goes to /results.
wrong() {
    local number vm
    echo "$1" >>$folder/wrong
    number=$(wc -l <$folder/wrong)
    echo "WRONG $number: $1: $2"
    {
        echo "$1: $2"
        cat "$folder/$worker.out" "$folder/$worker.err"
        xy trace
        xy vm-list
        for vm in $vms; do cat "$folder/$vm.vm"; xy explain "$vm"; xy block-list "$vm"; xy network-list "$vm"; done
        xl list
        losetup -a
        xenstore-ls -f /
        tail -n 40 /results/xylemd.log
    } >"/results/wrong-$number" 2>&1
}

clock() { now_us=${EPOCHREALTIME/./}; }
# kills_are KIND: what the counts of kills say that are of meaning for such an operation.
kills_are() {
    read -r kills <$folder/kills-xylemd
    case $1 in
        store-*) read -r more <$folder/kills-store && kills=$kills.$more ;;
    esac
}

# operate KIND ok|refused COMMAND...: does it, notes it, compares it; $fate is ok, refused, cut (xylemd was killed
# meanwhile) or wrong.
operate() {
    local kind=$1 wanted=$2 before begun status message lines
    shift 2
    kills_are "$kind"
    before=$kills
    clock
    begun=$now_us
    timeout 300 "$@" >"$folder/$worker.out" 2>"$folder/$worker.err"
    status=$?
    clock
    kills_are "$kind"
    message=$(tail -n 1 "$folder/$worker.err")
    lines=$(grep -c '^xy: ' "$folder/$worker.err")
    fate=wrong
    if [ $status = 0 ] && [ "$wanted" = ok ]; then
        fate=ok
    elif [ $status = 1 ] && [ "$wanted" = refused ] && [ "$lines" = 1 ]; then
        fate=refused
    elif [ "$kills" != "$before" ] || [[ $kills == *[13579] ]] || [[ $kills == *[13579].* ]]; then
        if [ $status = 0 ] || { [ $status = 1 ] && [ "$lines" = 1 ]; }; then fate=cut; fi
    fi
    # u2 is the one that runs on SVM.
    if [ $fate = wrong ] && [ "${vm:-}" = u2 ] && svm_lost_a_guest; then fate=cut; fi
    echo "$kind $fate $(((now_us - begun) / 1000)) $message" >>"/results/ops.$worker"
    [ $fate != wrong ] || wrong "$kind" "$* ended with $status after $(((now_us - begun) / 1000)) ms where '$wanted' was expected: $(cat "$folder/$worker.err")"
}

# svm_lost_a_guest: whether a PVH guest of the emulated SVM died of a triple fault, which Xen takes for a reboot, since
# somebody asked last. See README.md.
svm_losses() { { cat $folder/svm-losses; xl dmesg; } 2>/dev/null | grep -c 'Triple fault'; }
svm_lost_a_guest() {
    local known losses
    known=$(cat $folder/svm-losses-known 2>/dev/null) || known=0
    losses=$(svm_losses)
    echo "$losses" >$folder/svm-losses-known
    [ "$losses" -gt "$known" ]
}

# disk_of VM DISK: how it is written.
disk_of() {
    case $1 in
        w1) echo "s:$1-$2,,$2,w" ;;
        *) echo "/disks/$1-$2.raw,raw,$2,w" ;;
    esac
}

prepare_vms() {
    local vm disk list
    file_system /srv
    xy sr-create s file path=/srv/vdis || fail sr-create
    for vm in $vms; do
        for disk in xvda xvdb xvdc; do
            case $vm in
                w1) xy vdi-create "s:$vm-$disk" 1M || fail vdi-create ;;
                l1) cp /guest/disk.img "/disks/$vm-$disk.raw" ;;
                *) truncate -s 1M "/disks/$vm-$disk.raw" ;;
            esac
        done
        truncate -s 1M "/disks/$vm-cd1.iso" "/disks/$vm-cd2.iso"
        list="disk = ['$(disk_of "$vm" xvda)', '$(disk_of "$vm" xvdb)', ',,xvdd:cdrom,r']"
        case $vm in
            l*)
                linux_cfg "$vm" "type = 'pv'" "memory = 128" "extra = 'console=hvc0 quiet $FAST_BOOT xylem.io=1'" "$list" "vif = ['bridge=xenbr0']"
                # To unpack it takes an emulated host many seconds after each kill; `lab run --vmlinux` spares that.
                [ ! -e /guest/vmlinux ] || sed -i 's,/guest/vmlinuz,/guest/vmlinux,' "/tmp/$vm.cfg"
                ;;
            u2) unikernel_cfg "$vm" "type = 'pvh'" "extra = 'xylem.quiet'" "$list" "vif = ['bridge=xenbr0']" ;;
            *) unikernel_cfg "$vm" "type = 'pv'" "extra = 'xylem.quiet'" "$list" "vif = ['bridge=xenbr0']" ;;
        esac
        life=none defined=0 vifs=0 cd='' disks=''
        remember "$vm"
    done
}

rows() { xy "$@" 2>/dev/null | tail -n +2; }
number_of() { case $1 in xvda) echo 51712 ;; xvdb) echo 51728 ;; xvdc) echo 51744 ;; xvdd) echo 51760 ;; esac; }
name_of() { case $1 in 51712) echo xvda ;; 51728) echo xvdb ;; 51744) echo xvdc ;; 51760) echo xvdd ;; esac; }

# as_described VM: it is what the model in the variables says.
as_described() {
    local row blocks networks domid disk wanted=''
    row=$(rows vm-list | awk -v vm="$1" '$1 == vm { print $4, $5 }') || return 1
    case $life in
        none) [ -z "$row" ]; return ;;
        down) [ "$row" = "down yes" ]; return ;;
    esac
    if [ $defined = 1 ]; then [ "$row" = "running yes" ]; else [ "$row" = "running no" ]; fi || return 1
    domid=$(xy domid "$1" 2>/dev/null) || return 1
    xl list "$1" | awk 'NR == 2 && $5 ~ /^..----$/ { good = 1 } END { exit !good }' || return 1
    blocks=$(rows block-list "$1")
    # They are listed in the order in which they came.
    for disk in $disks ${cd:+xvdd}; do wanted="$wanted$(number_of "$disk") 4;"; done
    [ "$(echo "$blocks" | sort -n | awk 'NF { printf "%s %s;", $1, $4 }')" = "$wanted" ] || return 1
    networks=$(rows network-list "$1")
    [ "$(echo "$networks" | awk 'NF && $5 == 4' | wc -l)" = "$vifs" ] || return 1
    [ "$(echo "$networks" | grep -c .)" = "$vifs" ] || return 1
    [ "$(ls /sys/class/net/xenbr0/brif | grep -c "^vif$domid\\.")" = "$vifs" ] || return 1
    case $1 in l*) writes_on "$1" ;; esac
}

# A Linux guest writes to its disk, and reads it back, all the time.
written() { cat "$(console_log "$1")" 2>/dev/null | grep -c 'XYLEM-GUEST: io=[0-9]'; }
writes_on() {
    local before
    before=$(written "$1")
    wait_for "[ \$(written $1) -gt $before ]" 60
}

# look_again VM: the model learns what there is, once nothing is under way with the VM. A daemon that is killed meanwhile
# answers later.
look_again() {
    local row list blocks='' networks='' number deadline=$((SECONDS + 300))
    while :; do
        [ $SECONDS -lt $deadline ] || { wrong "unsettled-$1" "$(xy explain "$1" 2>&1)"; break; }
        sleep 0.3
        list=$(xy vm-list 2>/dev/null) || continue
        row=$(echo "$list" | awk -v vm="$1" '$1 == vm { print $4, $5 }')
        case $row in
            '' | down*) break ;;
            running* | paused*) ;;
            *) continue ;;
        esac
        list=$(xy explain "$1" 2>/dev/null) || continue
        case $list in *'steps have ended'*) continue ;; esac
        blocks=$(xy block-list "$1" 2>/dev/null) || continue
        networks=$(xy network-list "$1" 2>/dev/null) && break
    done
    life=none defined=0 vifs=0 cd='' disks=''
    case $row in down*) life=down ;; running* | paused*) life=up ;; esac
    case $row in *yes) defined=1 ;; esac
    case $row in paused*) xy unpause "$1" ;; esac
    [ $life = up ] || return 0
    for number in $(echo "$blocks" | awk 'NR > 1 { print $1 }'); do
        case $number in 51760) cd=xvdd ;; *) disks="$disks $(name_of "$number")" ;; esac
    done
    disks=${disks# }
    vifs=$(echo "$networks" | awk 'NR > 1' | grep -c .)
}

# came_up VM: what its configuration has; a Linux guest is waited for, so that it can consent to what follows.
came_up() {
    life=up vifs=1 cd='' disks='xvda xvdb'
    wait_until_ready "$1"
}
ready_count() { cat "$(console_log "$1")" 2>/dev/null | grep -c 'XYLEM-GUEST: ready'; }
wait_until_ready() {
    case $1 in l*) wait_for "[ \$(ready_count $1) -gt $ready_before ]" 400 || wrong "boot-$1" "$(tail -n 3 "$(console_log "$1")")" ;; esac
}

# vm_hand VMS...: one operation on one of them.
vm_hand() {
    local vm
    pick "$@"
    vm=$picked
    recall "$vm"
    ready_before=$(ready_count "$vm")
    case $life in
        none) on_nothing "$vm" ;;
        down) on_defined "$vm" ;;
        up) on_running "$vm" ;;
    esac
    case $fate in cut | wrong) look_again "$vm" ;; esac
    remember "$vm"
}

on_nothing() {
    draw 10
    case $drawn in
        [0-6])
            operate create ok xy create -q "/tmp/$1.cfg"
            [ "$fate" != ok ] || came_up "$1"
            ;;
        7 | 8)
            operate define ok xy define "/tmp/$1.cfg"
            [ "$fate" != ok ] || life=down defined=1
            ;;
        9)
            pick "block-attach $1 $(disk_of "$1" xvda)" "destroy $1" "shutdown $1" "reboot $1" "start $1" "undefine $1" "network-detach $1 0"
            # shellcheck disable=SC2086 # one word for each
            operate not-there refused xy $picked
            ;;
    esac
}

on_defined() {
    draw 10
    case $drawn in
        [0-5])
            operate start ok xy start "$1"
            [ "$fate" != ok ] || came_up "$1"
            ;;
        6 | 7)
            operate undefine ok xy undefine "$1"
            [ "$fate" != ok ] || life=none defined=0
            ;;
        8) operate define ok xy define "/tmp/$1.cfg" ;;
        9)
            pick "block-attach $1 $(disk_of "$1" xvda)" "reboot $1" "create -q /tmp/$1.cfg"
            # shellcheck disable=SC2086
            operate not-up refused xy $picked
            ;;
    esac
}

on_running() {
    draw 100
    # A Linux guest takes long to come up again.
    case $1 in l*) [ $drawn -lt 76 ] || [ $((RANDOM % 4)) = 0 ] || drawn=$((drawn - 70)) ;; esac
    case $drawn in
        [0-9] | 1[0-9]) add_disk "$1" ;;
        2[0-9] | 3[0-2]) remove_disk "$1" '' ;;
        3[3-8]) remove_disk "$1" --force ;;
        39 | 4[0-7]) add_vif "$1" ;;
        4[8-9] | 5[0-3]) remove_vif "$1" '' ;;
        5[4-7]) remove_vif "$1" --force ;;
        5[8-9] | 6[0-5]) change_cd "$1" ;;
        6[6-8]) hold_still "$1" ;;
        69 | 7[0-2]) operate twice refused xy create -q "/tmp/$1.cfg" ;;
        7[3-5]) change_definition "$1" ;;
        7[6-9] | 8[0-5]) stop "$1" shutdown xy shutdown -w -w "$1" ;;
        8[6-9] | 9[0-2]) stop "$1" destroy xy destroy "$1" ;;
        9[3-6])
            local kills_then
            kills_are reboot
            kills_then=$kills
            operate reboot ok xy reboot -w -w "$1"
            [ "$fate" = ok ] || return
            # The old domain is gone. A daemon that is killed before the next one is whole takes the VM down.
            look_again "$1"
            kills_are reboot
            if [ $life = up ]; then
                wait_until_ready "$1"
            elif [ "$kills" = "$kills_then" ]; then
                wrong reboot "$1 did not come back"
            fi
            ;;
        *) overtake "$1" ;;
    esac
}

stop() {
    local vm=$1 kind=$2
    shift 2
    operate "$kind" ok "$@"
    [ "$fate" = ok ] || return
    # Lost in the middle of its shutdown, it comes again.
    if [ "$vm" = u2 ] && svm_lost_a_guest; then look_again "$vm"; return; fi
    if [ $defined = 1 ]; then life=down; else life=none; fi
}

add_disk() {
    local disk
    for disk in xvda xvdb xvdc; do
        case " $disks " in *" $disk "*) continue ;; esac
        operate block-attach ok xy block-attach "$1" "$(disk_of "$1" $disk)"
        [ "$fate" != ok ] || disks=$(echo "$disks $disk" | tr ' ' '\n' | sort | tr '\n' ' ')
        disks=${disks# } disks=${disks% }
        return
    done
    operate attach-twice refused xy block-attach "$1" "$(disk_of "$1" xvdb)"
}

# remove_disk VM --force|'': not the first one, on which Linux writes.
remove_disk() {
    local disk=xvdb
    draw 2
    [ $drawn = 0 ] || disk=xvdc
    case " $disks " in
        *" $disk "*)
            # shellcheck disable=SC2086
            operate "block-detach$2" ok xy block-detach $2 "$1" $disk
            [ "$fate" != ok ] || disks=$(echo " $disks " | sed "s/ $disk / /; s/^ //; s/ *\$//")
            ;;
        *) operate detach-absent refused xy block-detach "$1" $disk ;;
    esac
}

add_vif() {
    [ "$vifs" -lt 2 ] || { fate=ok; return; }
    operate network-attach ok xy network-attach "$1" bridge=xenbr0
    [ "$fate" != ok ] || vifs=$((vifs + 1))
}

remove_vif() {
    local number
    number=$(rows network-list "$1" | awk '{ print $1; exit }')
    if [ "$vifs" = 0 ] || [ -z "$number" ]; then
        operate detach-absent refused xy network-detach "$1" 7
        return
    fi
    # shellcheck disable=SC2086
    operate "network-detach$2" ok xy network-detach $2 "$1" "$number"
    [ "$fate" != ok ] || vifs=$((vifs - 1))
}

change_cd() {
    draw 3
    if [ -n "$cd" ] && [ $drawn = 0 ]; then
        operate cd-eject ok xy cd-eject "$1" xvdd
        [ "$fate" != ok ] || cd=''
    else
        operate cd-insert ok xy cd-insert "$1" xvdd "/disks/$1-cd$((drawn % 2 + 1)).iso"
        [ "$fate" != ok ] || cd=xvdd
    fi
}

hold_still() {
    operate pause ok xy pause "$1"
    [ "$fate" = ok ] || return
    operate unpause ok xy unpause "$1"
}

change_definition() {
    if [ $defined = 1 ]; then
        operate undefine ok xy undefine "$1"
        [ "$fate" != ok ] || defined=0
    else
        # What runs is kept from now on.
        operate define-running ok xy define "/tmp/$1.cfg"
        [ "$fate" != ok ] || defined=1
    fi
}

# overtake VM: a destroy while a device is on its way.
overtake() {
    xy block-attach "$1" "$(disk_of "$1" xvdc)" >/dev/null 2>&1 &
    local attach=$!
    xy network-attach "$1" bridge=xenbr0 >/dev/null 2>&1 &
    local network=$!
    draw 30
    sleep "0.$drawn"
    stop "$1" overtake xy destroy "$1"
    wait $attach $network
}
