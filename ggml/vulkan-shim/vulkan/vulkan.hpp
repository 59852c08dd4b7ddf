// Found before the system's header of this name, which it includes; then come the few types that ggml
// uses and that headers older than Vulkan 1.3.272 lack (Debian 12 has 1.3.239).
#pragma once
#include_next <vulkan/vulkan.hpp>

#ifndef VK_EXT_layer_settings
#include <vector>

// Laid out as the specification says, since the loader reads them.
namespace VULKAN_HPP_NAMESPACE {

enum class LayerSettingTypeEXT : int32_t { eBool32 = 0 };

struct LayerSettingEXT {
    const char * pLayerName;
    const char * pSettingName;
    LayerSettingTypeEXT type;
    uint32_t valueCount;
    const void * pValues;
};

struct LayerSettingsCreateInfoEXT {
    explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> & settings)
        : settingCount(static_cast<uint32_t>(settings.size())), pSettings(settings.data()) {}

    // VK_STRUCTURE_TYPE_LAYER_SETTINGS_CREATE_INFO_EXT
    int32_t sType = 1000496000;
    const void * pNext = nullptr;
    uint32_t settingCount;
    const LayerSettingEXT * pSettings;
};

} // namespace VULKAN_HPP_NAMESPACE
#endif
