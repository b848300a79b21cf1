#!/bin/busybox sh
# PID 1 of a guest: mount what tests expect, run one command, hand its output and exit status to the host, end.
# The root is the initramfs; it says what it was told to run in /run/vmtest.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

mount -t devtmpfs -o exec dev /dev
mkdir -p /dev/pts /dev/shm /dev/hugepages
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t hugetlbfs hugetlb /dev/hugepages
# Each of these may be missing from a kernel's configuration; the test that needs it says so.
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mount -t tracefs trace /sys/kernel/tracing
mount -t debugfs debug /sys/kernel/debug
mount -t securityfs security /sys/kernel/security
ln -sf /proc/self/fd /dev/fd
ln -sf /proc/self/fd/0 /dev/stdin
ln -sf /proc/self/fd/1 /dev/stdout
ln -sf /proc/self/fd/2 /dev/stderr
ip link set lo up
hostname vmtest
[ -e /lib/modules ] || ln -s /usr/lib/modules /lib/modules

# The guest is some twenty times slower than the machines whose time slices these are. Left as they are, tasks would be
# preempted twenty times as often for what they do, in the middle of a hook as well. (Since v6.6; before v7.0 no matter.)
slice=/sys/kernel/debug/sched/base_slice_ns
[ -e $slice ] && echo $(($(cat $slice) * 20)) >$slice

# Waits until a condition holds, for half a minute at most: devices and their names appear in the background.
until_true() {
	tries=0
	until "$@"; do
		[ $tries = 300 ] && return 1
		usleep 100000
		tries=$((tries + 1))
	done
}

# The device of a channel to the host, by the channel's name.
find_channel() {
	for port in /sys/class/virtio-ports/*; do
		[ "$(cat "$port/name" 2>/dev/null)" = "$1" ] && device="/dev/${port##*/}" && return
	done
	return 1
}

channel() {
	until_true find_channel "$1" && echo "$device" && return
	echo "vmtest: this kernel offers no channel $1 to the host" >/dev/console
	reboot -f
}

modprobe -q -a virtio_pci virtio_console
modprobe -q nvme
stdout=$(channel stdout) stderr=$(channel stderr) status=$(channel status) results=$(channel results)

# Links a disc by what it is for, which is its serial number: which one is found first is chance.
find_disc() {
	for block in /sys/block/nvme*; do
		[ "$(cat "$block/device/serial" 2>/dev/null | tr -d ' ')" = "$1" ] && ln -sf "${block##*/}" "/dev/vmtest-$1" && return
	done
	return 1
}

# A kernel without the driver never finds any.
if [ -e /sys/bus/pci/drivers/nvme ]; then
	until_true find_disc ext4
	until_true find_disc swap
	modprobe -q ext4
	mount -t ext4 /dev/vmtest-ext4 /mnt/ext4 && chmod 1777 /mnt/ext4
fi

# Pipes, not the ports themselves: a port can be open once only, and programs should see an ordinary pipe.
mkfifo /run/vmtest/stdout /run/vmtest/stderr
cat /run/vmtest/stdout >"$stdout" &
readers=$!
cat /run/vmtest/stderr >"$stderr" &
readers="$readers $!"
sh /run/vmtest/command </dev/null >/run/vmtest/stdout 2>/run/vmtest/stderr
code=$?

# What the command left running would hold the pipes open for ever.
for process in /proc/[0-9]*; do
	pid=${process##*/}
	case " 1 $readers " in *" $pid "*) continue ;; esac
	[ -e "$process/exe" ] && kill -KILL "$pid" 2>/dev/null
done
wait $readers
tar -cf - -C /results . >"$results"
echo "$code" >"$status"
reboot -f
