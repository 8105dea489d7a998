"""The Vulkan loader: the binding's raw cffi objects, the instance, and the validation layer's messages.

Owns the import of the PyPI `vulkan` binding (it opens the loader library, so it is imported on first use) and
the VkInstance. Devices are `physical`'s and `device`'s.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from vkinductor.runtime import env
from vkinductor.runtime.errors import NoDeviceError, UnsupportedError, VulkanError, result_name
from vkinductor.runtime.registry import registry

VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
_DRIVER_VARIABLES = (
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    "VK_ADD_DRIVER_FILES",
    "VK_LOADER_DRIVERS_SELECT",
)

# Messages that are not about our use of the API: (part of the message, why it is ignored).
IGNORED_MESSAGES: tuple[tuple[str, str], ...] = (
    # A layer older than the driver says so of every extension and structure that it does not know.
    ("is not supported by this layer", "the layer is older than the driver"),
    ("includes a structure with unknown VkStructureType", "the layer is older than the driver"),
)

INSTALL_HINT = (
    "Install a Vulkan loader and a driver: on Debian and Ubuntu `apt install libvulkan1 mesa-vulkan-drivers` "
    "(or your GPU vendor's driver), on Windows and macOS the GPU driver or the Vulkan SDK"
)


class Binding(NamedTuple):
    """The raw cffi objects of the binding: `ffi` knows the types, `lib` the functions that the loader
    exports.
    """

    ffi: Any
    lib: Any


def binding() -> Binding:
    """The raw cffi objects.

    Raises:
        NoDeviceError: the binding or the loader library (libvulkan.so.1, vulkan-1.dll) is missing.
    """
    try:
        from vulkan import _vulkan
    except ImportError as error:
        raise NoDeviceError(f"the Python package 'vulkan' cannot be imported ({error}): pip install vulkan") from error
    except OSError as error:
        raise NoDeviceError(f"no Vulkan loader on this machine ({error}). {INSTALL_HINT}") from error
    return Binding(_vulkan.ffi, _vulkan.lib)


class Instance:
    """A VkInstance and, when validation is on, its messenger."""

    def __init__(self, validation: bool) -> None:
        self.ffi, self.lib = binding()
        self.validation = validation
        self.made_under = _environment()
        self._messenger: Any = None
        self._keep: list[Any] = []
        self.api_version = self._loader_version()
        self.handle = self._create()
        if validation:
            self._create_messenger()

    def _loader_version(self) -> tuple[int, int]:
        version = self.ffi.new("uint32_t *")
        self.lib.vkEnumerateInstanceVersion(version)
        return (version[0] >> 22, (version[0] >> 12) & 0x3FF)

    def _names(self, call: str, ctype: str, member: str, *args: Any) -> set[str]:
        function = getattr(self.lib, call)
        count = self.ffi.new("uint32_t *")
        if function(*args, count, self.ffi.NULL) < 0:
            return set()
        items = self.ffi.new(f"{ctype}[]", max(count[0], 1))
        if function(*args, count, items) < 0:
            return set()
        return {self.ffi.string(getattr(items[i], member)).decode() for i in range(count[0])}

    def extensions(self, layer: str | None = None) -> set[str]:
        """Instance extensions of the loader and its drivers, or those a layer brings."""
        name = self.ffi.new("char[]", layer.encode()) if layer else self.ffi.NULL
        return self._names("vkEnumerateInstanceExtensionProperties", "VkExtensionProperties", "extensionName", name)

    def layers(self) -> set[str]:
        """Names of the layers that the loader finds."""
        return self._names("vkEnumerateInstanceLayerProperties", "VkLayerProperties", "layerName")

    def _strings(self, names: list[str]) -> Any:
        items = [self.ffi.new("char[]", name.encode()) for name in names]
        array = self.ffi.new("char *[]", items) if items else self.ffi.NULL
        self._keep += [items, array]
        return array

    def _create(self) -> Any:
        ffi = self.ffi
        available = self.extensions()
        names: list[str] = []
        layers: list[str] = []
        flags = 0
        pnext = ffi.NULL
        if "VK_KHR_portability_enumeration" in available:  # MoltenVK is hidden without it
            names.append("VK_KHR_portability_enumeration")
            flags |= 1
        if self.validation:
            pnext = self._validation_chain(available, names)
            layers.append(VALIDATION_LAYER)
        version = min(self.api_version, (1, 3))
        application = ffi.new("VkApplicationInfo *")
        application.sType = 0
        application.apiVersion = (version[0] << 22) | (version[1] << 12)
        name = ffi.new("char[]", b"vkinductor")
        application.pApplicationName = application.pEngineName = name
        info = ffi.new("VkInstanceCreateInfo *")
        info.sType = 1
        info.pNext = pnext
        info.flags = flags
        info.pApplicationInfo = application
        info.enabledLayerCount, info.ppEnabledLayerNames = len(layers), self._strings(layers)
        info.enabledExtensionCount, info.ppEnabledExtensionNames = len(names), self._strings(names)
        out = ffi.new("VkInstance *")
        result = self.lib.vkCreateInstance(info, ffi.NULL, out)
        if result < 0:
            raise NoDeviceError(
                f"no Vulkan driver could be used (vkCreateInstance: {result_name(result)})"
                f"{driver_variables()}. {INSTALL_HINT}"
            )
        return out[0]

    def _validation_chain(self, available: set[str], names: list[str]) -> Any:
        ffi = self.ffi
        if VALIDATION_LAYER not in self.layers():
            raise UnsupportedError(
                f"VKINDUCTOR_VALIDATION=1 needs {VALIDATION_LAYER}, which the loader does not find: "
                "`apt install vulkan-validationlayers` or the Vulkan SDK, or unset the variable"
            )
        of_layer = self.extensions(VALIDATION_LAYER)
        if "VK_EXT_debug_utils" not in available | of_layer:
            raise UnsupportedError("VKINDUCTOR_VALIDATION=1 needs VK_EXT_debug_utils: update the Vulkan loader")
        names.append("VK_EXT_debug_utils")
        self._callback = ffi.callback("PFN_vkDebugUtilsMessengerCallbackEXT", _on_message)
        messenger = ffi.new("VkDebugUtilsMessengerCreateInfoEXT *")
        messenger.sType = 1000128004
        messenger.messageSeverity = 0x100 | 0x1000  # warning, error
        messenger.messageType = 1 | 2 | 4  # general, validation, performance
        messenger.pfnUserCallback = self._callback
        self._messenger_info = messenger
        if "VK_EXT_validation_features" in of_layer:
            enables = ffi.new("VkValidationFeatureEnableEXT[]", [4])  # SYNCHRONIZATION_VALIDATION
            features = ffi.new("VkValidationFeaturesEXT *")
            features.sType = 1000247000
            features.enabledValidationFeatureCount = 1
            features.pEnabledValidationFeatures = enables
            names.append("VK_EXT_validation_features")
            settings, self._layer_data = features, [enables]
        elif "VK_EXT_layer_settings" in of_layer:  # newer layers drop validation_features
            layer, setting = ffi.new("char[]", VALIDATION_LAYER.encode()), ffi.new("char[]", b"validate_sync")
            on = ffi.new("VkBool32[]", [1])
            entry = ffi.new("VkLayerSettingEXT *")
            entry.pLayerName, entry.pSettingName = layer, setting
            entry.type, entry.valueCount, entry.pValues = 0, 1, on  # VK_LAYER_SETTING_TYPE_BOOL32_EXT
            settings = ffi.new("VkLayerSettingsCreateInfoEXT *")
            settings.sType = 1000496000
            settings.settingCount, settings.pSettings = 1, entry
            names.append("VK_EXT_layer_settings")
            self._layer_data = [layer, setting, on, entry]
        else:
            return messenger
        # Chained on the instance too: creation and destruction are validated as well.
        chained = ffi.new("VkDebugUtilsMessengerCreateInfoEXT *", messenger[0])
        chained.pNext = ffi.NULL
        settings.pNext = chained
        self._keep += [settings, chained]
        return settings

    def function(self, name: str) -> Any:
        """The instance-level function `name` as a callable, or None when neither loader nor driver has it."""
        pointer = self.lib.vkGetInstanceProcAddr(self.handle, self.ffi.new("char[]", name.encode()))
        return self.ffi.cast(f"PFN_{name}", pointer) if pointer != self.ffi.NULL else None

    def _create_messenger(self) -> None:
        create = self.function("vkCreateDebugUtilsMessengerEXT")
        out = self.ffi.new("VkDebugUtilsMessengerEXT *")
        result = create(self.handle, self._messenger_info, self.ffi.NULL, out)
        if result < 0:
            raise VulkanError(f"the validation messenger cannot be created: {result_name(result)}")
        self._messenger = out[0]

    def destroy(self) -> None:
        """Destroy the instance; every device made from it must be gone."""
        if self.handle is None:
            return
        if self._messenger is not None:
            self.function("vkDestroyDebugUtilsMessengerEXT")(self.handle, self._messenger, self.ffi.NULL)
        self.lib.vkDestroyInstance(self.handle, self.ffi.NULL)
        self.handle = None


def _on_message(severity: int, kinds: int, data: Any, _user: Any) -> int:
    from vulkan import _vulkan

    text = _vulkan.ffi.string(data.pMessage).decode(errors="replace")
    if not any(part in text for part, _ in IGNORED_MESSAGES):
        registry.messages.append(f"{'error' if severity & 0x1000 else 'warning'}: {text}")
    return 0


def driver_variables() -> str:
    """The environment variables that steer the loader, as a phrase for error messages; empty when none is
    set.
    """
    found = [f"{name}={os.environ[name]!r}" for name in _DRIVER_VARIABLES if os.environ.get(name)]
    return f"; the loader was steered by {', '.join(found)}: check that these name valid driver files" if found else ""


def _environment() -> tuple[Any, ...]:
    """What decides the drivers and layers that a new instance gets."""
    return env.validation(), sorted((k, v) for k, v in os.environ.items() if k.startswith("VK_"))


def instance() -> Instance:
    """The process's instance, created on the first call and again when the environment asks for other drivers or
    layers while no device is open. Nothing is kept when that fails, so a later call tries anew.

    It outlives its devices: the loader unloads a driver with its last instance, and NVIDIA's (580) leaves something
    behind each time, so that the 29th instance of a process finds no driver.

    Raises:
        NoDeviceError: no loader or no driver.
        UnsupportedError: validation was asked for and the layer is missing.
        VulkanError: this process was forked from one that had Vulkan open.
    """
    with registry.lock:
        check_fork()
        kept = registry.instance
        if kept is not None and registry.device is None and kept.made_under != _environment():
            release()
        if registry.instance is None:
            registry.instance = Instance(env.validation())
            registry.pid = os.getpid()
        return registry.instance


def release() -> None:
    """Destroy the process's instance, if there is one; no device may be open."""
    with registry.lock:
        kept, registry.instance = registry.instance, None
        if kept is not None:
            kept.destroy()


def check_fork() -> None:
    """Raise in a child process whose parent had Vulkan open when it forked."""
    if registry.forked or (registry.pid is not None and registry.pid != os.getpid()):
        raise VulkanError(
            "this process was forked after Vulkan had been opened, and a driver does not survive that. Start "
            'workers with the "spawn" method (multiprocessing.set_start_method("spawn")), or fork before the '
            "first use of the device"
        )


def validation_messages() -> tuple[str, ...]:
    """Warnings and errors of the validation layer so far, oldest first; empty without
    VKINDUCTOR_VALIDATION=1.
    """
    return tuple(registry.messages)


def clear_validation_messages() -> None:
    """Forget the messages so far."""
    registry.messages.clear()
