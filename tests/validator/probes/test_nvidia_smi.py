"""`nvidia-smi -q -x` as numbers, for whole GPUs and for those with MIG."""

from __future__ import annotations

import pytest

from validator.measurement import Lacks, lacking
from validator.probes import nvidia_smi

GPU = """<gpu id="00000000:00:1B.0"><product_name>NVIDIA A100</product_name><uuid>GPU-1</uuid>
<product_architecture>Ampere</product_architecture><mig_mode><current_mig>{mig}</current_mig></mig_mode>
<utilization><gpu_util>{utilization}</gpu_util><memory_util>{utilization}</memory_util></utilization>
<fb_memory_usage><total>40960 MiB</total><used>0 MiB</used></fb_memory_usage>
<gpu_power_readings><instant_power_draw>61.2 W</instant_power_draw></gpu_power_readings></gpu>"""
LOG = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><attached_gpus>2</attached_gpus>
<gpu id="00000000:00:1B.0"><product_name>NVIDIA A10G</product_name><product_architecture>Ampere</product_architecture>
 <uuid>GPU-0</uuid><fan_speed>N/A</fan_speed>
 <fb_memory_usage><total>23028 MiB</total><used>1 MiB</used><free>22515 MiB</free></fb_memory_usage>
 <utilization><gpu_util>3 %</gpu_util><memory_util>0 %</memory_util></utilization>
 <temperature><gpu_temp>31 C</gpu_temp></temperature>
 <gpu_power_readings><power_draw>16.72 W</power_draw></gpu_power_readings>
 <pci><pci_gpu_link_info><pcie_gen><current_link_gen>1</current_link_gen></pcie_gen>
 <link_widths><current_link_width>16x</current_link_width></link_widths></pci_gpu_link_info></pci>
 <clocks><graphics_clock>210 MHz</graphics_clock><mem_clock>405 MHz</mem_clock></clocks></gpu>
<gpu id="00000000:00:1C.0"><product_name>NVIDIA A10G</product_name>
 <gpu_power_readings><power_draw>N/A</power_draw>
 <instant_power_draw>20.5 W</instant_power_draw></gpu_power_readings></gpu>
</nvidia_smi_log>"""


def read(mig: str, utilization: str) -> nvidia_smi.Gpu:
    (gpu,) = nvidia_smi.read(f"<nvidia_smi_log>{GPU.format(mig=mig, utilization=utilization)}</nvidia_smi_log>")
    return gpu


def test_values_are_numbers_of_the_first_path_that_has_one() -> None:
    gpu = read("Disabled", "7 %")
    assert (gpu.pci, gpu.mig, gpu.architecture) == ("0000:00:1b.0", "Disabled", "Ampere")
    assert gpu.values == {
        "utilization_gpu": 7.0, "utilization_memory": 7.0, "memory_total": 40960.0, "memory_used": 0.0,
        "power_draw": 61.2,
    }  # fmt: skip


def test_values_have_the_units_of_the_agent() -> None:
    first, second = nvidia_smi.read(LOG)
    assert (first.index, first.name, first.architecture, first.pci) == (0, "NVIDIA A10G", "Ampere", "0000:00:1b.0")
    assert first.values == {
        "memory_total": 23028, "memory_used": 1, "memory_free": 22515, "utilization_gpu": 3, "utilization_memory": 0,
        "temperature_gpu": 31, "power_draw": 16.72, "pcie_link_gen_current": 1, "pcie_link_width_current": 16,
        "clocks_current_graphics": 210, "clocks_current_memory": 405,
    }  # fmt: skip
    assert second.values == {"power_draw": 20.5}
    assert (first.layout, read("Disabled", "7 %").layout) == (12, 0)


def test_a_gpu_with_mig_has_no_utilization() -> None:
    gpu = read("Enabled", "N/A")
    assert gpu.mig == "Enabled"
    assert not lacking(Lacks.WITH_MIG) & gpu.values.keys()
    assert gpu.values["memory_total"] == 40960.0


def test_other_output_is_refused_with_its_beginning() -> None:
    with pytest.raises(ValueError, match=r"expected XML .*got 'NVIDIA-SMI has failed"):
        nvidia_smi.read("NVIDIA-SMI has failed")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:00:1E.0", "0000:00:1e.0"),
        ("0000:00:1e", "0000:00:1e.0"),
        ("0000:00:1e.1", "0000:00:1e.1"),
        ("0000:a0:1c", "0000:a0:1c.0"),
        ("00010000:00:1e.0", "10000:00:1e.0"),
        (" N/A ", "N/A"),
    ],
)
def test_pci_address(text: str, address: str) -> None:
    assert nvidia_smi.pci_address(text) == address
