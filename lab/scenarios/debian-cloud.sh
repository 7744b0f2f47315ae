# A VM from Debian's cloud image, as the book has it: an image, one command, and ssh. The guest's kernel, GRUB's menu and
# cloud-init are Debian's, and know nothing of Xylem.
# lab-guest: cloud
. /lab/lib-debian.sh

# on_guest COMMAND: as the operator reaches it.
on_guest() { ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o ConnectTimeout=20 -i /root/.ssh/id_ed25519 debian@10.0.0.5 "$@"; }

check "the boot is well" well
check "apt installs our packages" apt-get install -y /lab/packages/*.deb
check "a key" ssh-keygen -q -t ed25519 -N "" -f /root/.ssh/id_ed25519
check "an SR" xy sr-create local file path=/var/lib/xylem/disks
start=$(now)
check "an image" xy image import /lab/guest/debian-*-genericcloud-amd64.qcow2 --name debian
echo "imported in $(seconds_since "$start") s"
xy image list
start=$(now)
check "a VM" xy vm-create web1 --image debian --type pv --memory 384 --vcpus 1 --disk 1600M --ssh-key /root/.ssh/id_ed25519.pub \
    --ip 10.0.0.5/24 --gateway 10.0.0.1
echo "vm-create took $(seconds_since "$start") s"
check "its kernel is Debian's" console_wait web1 "Linux version 6.*-cloud-amd64" 300
check "one logs in by key" wait_for "on_guest true" 900
echo "reached after $(seconds_since "$start") s"
check "cloud-init ends without an error" on_guest cloud-init status --wait || on_guest sudo grep -A 20 -E 'WARNING|Traceback' /var/log/cloud-init.log
echo "$lab_output"
on_guest sudo cat /var/log/cloud-init.log >/results/cloud-init.log
check "by the data source that vm-create feeds" sh -c 'echo "$1" | grep -q DataSourceNoCloud' - "$(on_guest cloud-init query subplatform; on_guest cat /run/cloud-init/result.json)"
check "it has its name" [ "$(on_guest hostname)" = web1 ]
check "its root file system has grown" sh -c 'test "$1" -gt 1300000' - "$(on_guest df --output=size / | tail -1)"
check "it may become root" on_guest sudo true
check "the default route is ours" sh -c 'echo "$1" | grep -q "via 10.0.0.1"' - "$(on_guest ip route show default)"
check "no service failed" [ "$(on_guest systemctl --failed --quiet --no-legend | wc -l)" = 0 ]
on_guest systemctl --failed --no-pager
check "it survives save and restore" sh -c 'xy save web1 /srv/web1.save && xy restore /srv/web1.save'
check "ssh goes on" wait_for "on_guest true" 300
check "and a reboot" sh -c 'xy reboot web1'
check "with another boot" wait_for "[ \$(grep -c 'Linux version' $(console_log web1)) -ge 2 ]" 900
check "reached again" wait_for "on_guest true" 900
check "nobody makes another machine of it" [ "$(on_guest ls /var/lib/cloud/instances | wc -l)" = 1 ]
check "shutdown -w" xy shutdown -w web1
check "the image can be removed" sh -c 'xy undefine web1 && xy vdi-destroy local:web1 && xy vdi-destroy local:web1-seed && xy image remove debian'
cp "$(console_log web1)" /results/web1.log
